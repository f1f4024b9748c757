import stateflow as sf


class Balance(sf.KeyedProcess):  # called once per account and batch
    total = sf.ValueState(float, default=0.0)

    def process(self, account, rows, ctx):
        self.total.value += sum(row.amount for row in rows)
        yield account, self.total.value


@sf.pipeline("payments")
def payments(flow, *, input: str, output: str):
    payments = flow.source(
        "payments", sf.files(input, "json"), "account string, amount double"
    )
    balances = payments.key_by("account").process(
        "balance", Balance, output="account string, balance double"
    )
    balances.append("balances", sf.delta(output))
