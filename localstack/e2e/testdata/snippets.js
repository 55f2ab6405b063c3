// The snippets that introductions to sharding show, as they are to be typed. Where one of them
// cannot be typed as it is printed, a comment says what was corrected.
//   GRANARY_SPLIT_MS  how long the 1440 splits by single commands may take
const config = db.getSiblingDB('config');
const chunksOf = (ns) => config.chunks.find({ uuid: config.collections.findOne({ _id: ns }).uuid }).sort({ min: 1 }).toArray();

// --- Enable sharding, shard, look ----------------------------------------------------------
// (enableSharding is accepted, also twice, and not needed.)
sh.enableSharding('mydb');
sh.enableSharding('mydb');
sh.shardCollection('mydb.orders', { customer_id: 1, order_date: 1 }); // ascending, compound
same('one chunk of everything', chunksOf('mydb.orders').map((c) => [c.min, c.max]),
  [[{ customer_id: MinKey(), order_date: MinKey() }, { customer_id: MaxKey(), order_date: MaxKey() }]]);
sh.shardCollection('mydb.ranged', { order_id: 1 });
sh.shardCollection('mydb.hashed', { order_id: 'hashed' });
ok('a hashed collection begins on every shard', new Set(chunksOf('mydb.hashed').map((c) => c.shard)).size === 3);
// Corrected: db.shardCollection is no method of the shell. It is sh.shardCollection.
let e;
try { db.shardCollection('social.inbox', { owner: 1, sequence: 1 }); } catch (x) { e = x; }
ok('db.shardCollection is a TypeError of the shell itself', e instanceof TypeError && /is not a function/.test(e.message));
sh.shardCollection('social.inbox', { owner: 1, sequence: 1 });
sh.shardCollection('social.users', { user_name: 1 });

sh.stopBalancer(); // what follows shows chunks where it puts them

// --- Inbox: write to many boxes, read one of them -------------------------------------------
// Corrected: the sequence was computed as sequence_number and used as sequence; the closing
// parenthesis of the filter cut update and options off.
let social = db.getSiblingDB('social');
function deliver(msg) {
  for (const to of msg.to) {
    const result = social.users.findAndModify({ query: { user_name: to }, update: { $inc: { msg_count: 1 } }, upsert: true, new: true });
    const sequence = Math.floor(result.msg_count / 50);
    social.inbox.updateOne({ owner: to, sequence: sequence }, { $push: { messages: msg } }, { upsert: true });
  }
}
const sent = new Date(2024, 5, 1);
for (let i = 0; i < 120; i++) deliver({ from: 'Christian', to: ['Peter', 'Paul'], sent_on: sent, message: `Hello world ${i}` });
// Corrected: the count begins with 1, so that the first bucket holds 49 messages, not 50.
const boxes = social.inbox.find({ owner: 'Peter' }).sort({ sequence: 1 }).toArray();
same('buckets', boxes.map((b) => [b.sequence, b.messages.length]), [[0, 49], [1, 50], [2, 21]]);
same('a message as it was sent', boxes[0].messages[0], { from: 'Christian', to: ['Peter', 'Paul'], sent_on: sent, message: 'Hello world 0' });
same('counter', social.users.findOne({ user_name: 'Paul' }).msg_count, 120);
sh.splitAt('social.inbox', { owner: 'Peter', sequence: MinKey() });
sh.splitAt('social.inbox', { owner: 'Q', sequence: MinKey() });
sh.moveChunk('social.inbox', { owner: 'Peter', sequence: 0 }, 'shard02');
let newest = social.inbox.find({ owner: 'Peter' }).sort({ sequence: -1 }).limit(2);
same('the newest two', newest.toArray().map((b) => b.sequence), [2, 1]);
let x = newest.explain('executionStats');
same('from one shard, in order', [x.queryPlanner.winningPlan.stage, shardsOf(x.queryPlanner.winningPlan), x.queryPlanner.winningPlan.inKeyOrder], ['SINGLE_SHARD', ['shard02'], -1]);
same('no more than it returns', [x.executionStats.nReturned, x.executionStats.totalDocsExamined], [2, 2]);
for (const to of ['Peter', 'Paul']) {
  same('count up', social.users.explain().findAndModify({ query: { user_name: to }, update: { $inc: { msg_count: 1 } }, upsert: true }).queryPlanner.winningPlan.stage, 'SINGLE_SHARD');
  same('deliver', social.inbox.explain().update({ owner: to, sequence: 2 }, { $push: { messages: {} } }, { upsert: true }).queryPlanner.winningPlan.stage, 'SINGLE_SHARD');
}

// --- Several identities ---------------------------------------------------------------------
let users = db.getSiblingDB('users');
users.users.insertOne({ _id: 'peter', email: 'peter@example.com' });
// Corrected: a dot where a comma belongs, and sh. for db.
// Corrected: the shard key itself is declared unique. A unique index on a collection that is not
// sharded yet is refused, since a shard keeps apart what its shard key puts together.
fails('unique before the shard key', 67, () => users.identities.createIndex({ identifier: 1 }, { unique: true }));
sh.shardCollection('users.identities', { identifier: 1 }, true);
sh.shardCollection('users.users', { _id: 1 });
users.identities.ensureIndex({ identifier: 1 }, { unique: true });
users.users.ensureIndex({ _id: 1 }, { unique: true });
fails('unique without the shard key', 67, () => users.identities.createIndex({ id: 1 }, { unique: true }));
users.identities.insertOne({ identifier: { user: 'peter' }, id: 'peter' });
users.identities.insertOne({ identifier: { email: 'peter@example.com', user: 'peter' }, id: 'peter' });
for (const [ns, at] of [['users.identities', { identifier: { m: 1 } }], ['users.users', { _id: 'm' }]]) {
  sh.splitAt(ns, at);
  sh.moveChunk(ns, at, chunksOf(ns)[0].shard === 'shard01' ? 'shard02' : 'shard01');
}
// As printed, with {email, user} stored and {email} asked for, nothing is found: a sub-document
// is equal to another one only if it has the same fields in the same order.
same('as printed', users.identities.findOne({ identifier: { email: 'peter@example.com' } }), null);
x = users.identities.find({ identifier: { email: 'peter@example.com' } }).explain('executionStats');
same('targeted all the same', x.queryPlanner.winningPlan.stage, 'SINGLE_SHARD');
ok('and explain says why', x.queryPlanner.winningPlan.hints.some((h) => /sub-document equality is exact/.test(h)));
// Corrected: an identity is one field.
users.identities.deleteOne({ identifier: { email: 'peter@example.com', user: 'peter' } });
users.identities.insertOne({ identifier: { email: 'peter@example.com' }, id: 'peter' });
const dup = fails('one identity is one user', 11000, () => users.identities.insertOne({ identifier: { email: 'peter@example.com' }, id: 'paul' }));
ok('E11000 names the index and the value', /E11000.*identifier_1.*peter@example.com/.test(dup.message));
const identity = users.identities.findOne({ identifier: { email: 'peter@example.com' } });
same('the user by the email', users.users.find({ _id: identity.id }).toArray(), [{ _id: 'peter', email: 'peter@example.com' }]);
same('two queries, one shard each', [plan(users.identities.find({ identifier: { email: 'peter@example.com' } })).stage, plan(users.users.find({ _id: identity.id })).stage],
  ['SINGLE_SHARD', 'SINGLE_SHARD']);
same('instead of one at all shards', [plan(users.users.find({ email: 'peter@example.com' })).stage, plan(users.users.find({ email: 'peter@example.com' })).targeting],
  ['SHARD_MERGE', 'broadcast']);

// --- One chunk for each minute of the day ---------------------------------------------------
// Corrected: comments with one slash. (use data and use admin are words of the interactive shell.)
const admin = db.getSiblingDB('admin');
sh.enableSharding('data');
sh.shardCollection('data.data', { _id: 1 });
sh.stopBalancer();
same('stopped', [sh.getBalancerState(), sh.isBalancerRunning().mode], [false, 'off']);
const numberOfMinutesInDay = 60 * 24;
function midnight() { const d = new Date(); d.setHours(0); d.setMinutes(0); d.setSeconds(0, 0); return d; }
const date = midnight();
const began = Date.now();
for (let i = 0; i < numberOfMinutesInDay; i++) {
  const r = admin.runCommand({ split: 'data.data', middle: { _id: date } });
  if (r.ok !== 1) { print(`FAILED split ${i}: ${EJSON.stringify(r)}`); quit(1); }
  date.setMinutes(date.getMinutes() + 1);
}
const took = Date.now() - began;
print(`1440 splits by single commands: ${took} ms`);
ok(`1440 splits in ${took} ms`, took <= Number(process.env.GRANARY_SPLIT_MS || 5000));
const minutes = chunksOf('data.data');
same('chunks', minutes.length, 1441);
ok('bounds are dates, each once', new Set(minutes.slice(1).map((c) => c.min._id.getTime())).size === 1440);
fails('at an end there is nothing to cut', 2, () => admin.runCommand({ split: 'data.data', middle: { _id: midnight() } }));

// Nothing moves while the balancer is stopped; started, it deals the chunks out like cards.
sleep(3000);
same('where they were', new Set(chunksOf('data.data').map((c) => c.shard)).size, 1);
ok('and it is said why', /stopped by .* at /.test(sh.balancerCollectionStatus('data.data').why));
sh.startBalancer();
const started = Date.now();
const counts = (ns) => { const n = {}; chunksOf(ns).forEach((c) => { n[c.shard] = (n[c.shard] || 0) + 1; }); return Object.values(n).sort(); };
while (!(counts('data.data').length === 3 && counts('data.data')[2] - counts('data.data')[0] <= 1)) {
  if (Date.now() - started > 30000) { print(`FAILED spread: ${EJSON.stringify(counts('data.data'))} ${EJSON.stringify(sh.balancerCollectionStatus('data.data'))}`); quit(1); }
  sleep(200);
}
print(`1441 chunks spread over 3 shards: ${Date.now() - started} ms after sh.startBalancer()`);
const dealt = chunksOf('data.data');
ok('consecutive minutes on different shards', dealt.slice(1).every((c, i) => c.shard !== dealt[i].shard));
same('balanced', sh.balancerCollectionStatus('data.data').balancerCompliant, true);
ok('why they moved', config.actionlog.find({ what: 'balancer.round' }).toArray().some((r) => r.details.reasons.count > 0 && !r.details.errorOccured));

// The same in one commit of the root.
const points = [];
for (let d = midnight(), i = 0; i < numberOfMinutesInDay; i++) { points.push({ _id: new Date(d) }); d.setMinutes(d.getMinutes() + 1); }
const version = () => Number(db.serverStatus().sharding.rootVersion);
const before = version();
same('splitPoints', admin.runCommand({ shardCollection: 'data.presplit', key: { _id: 1 }, splitPoints: points }).ok, 1);
same('one commit', version() - before, 1);
const spread = {};
chunksOf('data.presplit').forEach((c) => { spread[c.shard] = (spread[c.shard] || 0) + 1; });
ok('1441 chunks, within one of each other', Object.values(spread).reduce((a, b) => a + b) === 1441 && Math.max(...Object.values(spread)) - Math.min(...Object.values(spread)) <= 1);
const presplit = chunksOf('data.presplit');
ok('consecutive minutes on different shards', presplit.slice(1).every((c, i) => c.shard !== presplit[i].shard));
// At one instant all writes are of one minute, and go to one chunk: a pre-split spreads a day.
same('now is one chunk', plan(db.getSiblingDB('data').presplit.find({ _id: new Date() })).chunks, 1);

const s = sh.status().value.databases.find((d) => d.database._id === 'data').collections['data.data'];
ok('sh.status', s.shardKey._id === 1 && s.chunkMetadata.reduce((n, c) => n + c.nChunks, 0) === 1441);
print('SNIPPETS OK');
