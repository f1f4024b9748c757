"""A demo's output: titles, explanations, and the verdict at the end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from demo.table import Orders, compared


class Narrator:
    def __init__(self, folder: Path, console: Console) -> None:
        self.folder = folder
        self.console = console
        self.orders = Orders(folder / "orders")
        self.totals = folder / "totals"

    def title(self, text: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{text}", align="left")

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def verdict(self, title: str) -> bool:
        """Compares the totals with one pass over all orders; prints and returns the verdict."""
        self.title(title)
        verdict = compared(self.orders.folder, self.totals)
        self.say(
            f"One pass over all {verdict.orders:,} orders, without Spark, gives {verdict.users} users and "
            f"{verdict.amount:,.2f} in all."
        )
        if verdict.right:
            self.console.print("[bold green]Every total is the same, and no row was delivered twice.[/]")
        else:
            self.console.print(
                f"[bold red]{len(verdict.wrong)} users have another total, {verdict.doubled} rows are doubled.[/]"
            )
        return verdict.right
