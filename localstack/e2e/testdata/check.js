// What the scripts here hold the server's answers against: a difference ends the script.
function same(what, got, want) {
  const g = EJSON.stringify(got), w = EJSON.stringify(want);
  if (g !== w) { print(`FAILED ${what}: got ${g}, want ${w}`); quit(1); }
}
function ok(what, cond) { if (!cond) { print(`FAILED ${what}`); quit(1); } }
function fails(what, code, fn) {
  try { fn(); } catch (e) { same(what + ' code', e.code, code); return e; }
  print(`FAILED ${what}: no error`); quit(1);
}
// plan is where a query goes, stats what it came to.
function plan(x) { return x.explain('queryPlanner').queryPlanner.winningPlan; }
function stats(x) { return x.explain('executionStats').executionStats; }
function shardsOf(p) { return p.shards.map((s) => s.shardName).sort(); }
