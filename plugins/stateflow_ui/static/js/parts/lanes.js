// A job's history as lanes, like `git log --graph`: which lane a row stands in and where lines run. Pure.
//
// Rows come newest first. A lane waits for the record that its newest row stands on; lanes that wait for the same
// record join there, since that is where a timeline was broken off.

// spans: [{ newest, oldest, parent }] -> { rows: [{ lane }], edges: [{ from, to, lane, end }], width }
export function lanes(spans) {
  const waiting = [];
  const edges = [];
  const rows = spans.map((span, at) => {
    const mine = waiting.flatMap((wait, lane) => (wait && wait.slot === span.newest ? [lane] : []));
    let lane = mine[0];
    if (lane === undefined) {
      lane = waiting.findIndex((wait) => !wait);
      if (lane < 0) lane = waiting.length;
    }
    for (const other of mine) {
      edges.push({ from: waiting[other].row, to: at, lane: other, end: lane });
      waiting[other] = null;
    }
    if (span.parent) waiting[lane] = { slot: span.parent, row: at };
    return { lane };
  });
  // What the oldest rows stand on is not shown: their lines run out at the bottom.
  waiting.forEach((wait, lane) => wait && edges.push({ from: wait.row, to: spans.length, lane, end: lane }));
  const width = Math.max(1, ...rows.map((row) => row.lane + 1), ...edges.map((edge) => edge.lane + 1));
  return { rows, edges: edges.map((edge) => ({ ...edge, start: rows[edge.from].lane })), width };
}
