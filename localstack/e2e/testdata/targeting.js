// A range-sharded collection of orders, as it is drawn in many introductions: chunks of two
// shards in turn. The drawing leaves [4000, 5000) without an owner; here shard01 has it.
const mydb = db.getSiblingDB('mydb');
mydb.dropDatabase();
sh.stopBalancer(); // the chunks stay where they are put
sh.enableSharding('mydb');
same('shardCollection', sh.shardCollection('mydb.orders', { customer_id: 1, order_date: 1 }).ok, 1); // ascending, compound

for (const at of [1000, 2000, 3000, 4000, 5000, 6000]) same('split', sh.splitAt('mydb.orders', { customer_id: at }).ok, 1);
const owners = { 0: 'shard01', 1000: 'shard02', 2000: 'shard01', 3000: 'shard02', 4000: 'shard01', 5000: 'shard01', 6000: 'shard02' };
for (const [at, to] of Object.entries(owners)) same('moveChunk', sh.moveChunk('mydb.orders', { customer_id: Number(at), order_date: MinKey() }, to).ok, 1);
const orders = mydb.orders;
orders.insertMany([...Array(700).keys()].map((i) => ({ customer_id: i * 10, order_date: new Date(2024, 0, 1 + i % 28), total: i % 200 })));
const table = db.getSiblingDB('config').chunks.find({ uuid: db.getSiblingDB('config').collections.findOne({ _id: 'mydb.orders' }).uuid }).sort({ min: 1 }).toArray();
same('table', table.map((c) => [c.min.customer_id, c.shard]), [[MinKey(), 'shard01'], [1000, 'shard02'], [2000, 'shard01'], [3000, 'shard02'],
  [4000, 'shard01'], [5000, 'shard01'], [6000, 'shard02']]);

// asked runs a query, and says which shards explain names, and how far the server says that it
// reached: explain and the request counters agree.
function reach() { return db.serverStatus().shardingStatistics.numHostsTargeted.find; }
function asked(what, filter, want) {
  const x = orders.find(filter).explain('executionStats');
  const p = x.queryPlanner.winningPlan;
  same(what, shardsOf(p), want);
  same(what + ', carried out', x.executionStats.executionStages.shards.map((s) => s.shardName).sort(), want);
  same(what + ', requests', x.executionStats.shardRequests, x.executionStats.executionStages.shards.reduce((n, s) => n + (s.nReturned > 101 ? 2 : 1), 0)); // a first batch of 101, and the rest
  const before = reach();
  same(what + ', documents', orders.find(filter).toArray().length, x.executionStats.nReturned);
  const after = reach(), grew = Object.keys(after).filter((k) => Number(after[k]) > Number(before[k]));
  same(what + ', counted as', grew, [want.length === 1 ? 'oneShard' : p.targeting === 'broadcast' ? 'allShards' : 'manyShards']);
  return p;
}
let p = asked('equality: the shard of [1000, 2000)', { customer_id: 1234 }, ['shard02']);
same('stage', p.stage, 'SINGLE_SHARD');
p = asked('open range: every owner of a part of it', { customer_id: { $gt: 4000 } }, ['shard01', 'shard02']);
same('chunks', p.chunks, 3);
p = asked('closed range: one chunk', { customer_id: { $gte: 1000, $lt: 2000 } }, ['shard02']);
same('chunks', p.chunks, 1);
p = asked('a field that is not in the key: all', { total: { $gt: 100 } }, ['shard01', 'shard02']);
ok('why', p.targeting === 'broadcast' && /no usable condition on "customer_id"/.test(p.reason));
ok('what to add', /add an equality, \$in or a range on "customer_id"/.test(p.advice));
asked('$in', { customer_id: { $in: [10, 2500] } }, ['shard01']);
asked('$or', { $or: [{ customer_id: 10 }, { customer_id: 2500 }] }, ['shard01']);
asked('missing: null', { customer_id: null }, ['shard01']);

// A third shard that owns [1000, 2000) only is not asked for what is above 4000.
same('moveChunk', sh.moveChunk('mydb.orders', { customer_id: 1500, order_date: MinKey() }, 'shard03').ok, 1);
asked('open range, with a third shard', { customer_id: { $gt: 4000 } }, ['shard01', 'shard02']);
asked('equality, moved', { customer_id: 1234 }, ['shard03']);
asked('all, with a third shard', { total: { $gt: 100 } }, ['shard01', 'shard02', 'shard03']);

// An index changes what a shard looks at, not how many shards are asked.
orders.createIndex({ total: 1 });
asked('an index does not target', { total: { $gt: 100 } }, ['shard01', 'shard02', 'shard03']);

// Sorted by the key: chunk after chunk, until the limit.
let x = orders.find({}).sort({ customer_id: 1, order_date: 1 }).limit(10).explain('executionStats');
same('in order', [x.queryPlanner.winningPlan.inKeyOrder, x.executionStats.executionStages.shards.map((s) => s.shardName)], [1, ['shard01']]);
x = orders.find({}).sort({ customer_id: -1, order_date: -1 }).limit(10).explain('executionStats');
same('backwards', [x.queryPlanner.winningPlan.inKeyOrder, x.executionStats.executionStages.shards.map((s) => s.shardName)], [-1, ['shard02']]);
same('stage', x.queryPlanner.winningPlan.stage, 'SHARD_MERGE');
// By another field: every shard sorts, this router merges.
x = orders.find({}).sort({ total: -1 }).limit(5).explain('executionStats');
same('merge sort', [x.queryPlanner.winningPlan.stage, x.executionStats.nReturned], ['SHARD_MERGE_SORT', 5]);
ok('at most the limit of each shard', x.executionStats.executionStages.shards.every((s) => s.nReturned <= 5));

// The other verbs explain as well.
same('count', orders.explain().count({ customer_id: 1234 }).queryPlanner.winningPlan.stage, 'SINGLE_SHARD');
same('distinct', orders.explain().distinct('total', { customer_id: { $lt: 500 } }).queryPlanner.winningPlan.chunks, 1);
same('update', orders.explain('executionStats').update({ customer_id: 10 }, { $set: { seen: true } }).executionStats.executionStages.nWouldModify, 1);
same('nothing was written', orders.countDocuments({ seen: true }), 0);
same('remove', orders.explain('executionStats').remove({ total: 7 }).executionStats.executionStages.nWouldDelete, orders.countDocuments({ total: 7 }));
same('findAndModify', orders.explain().findAndModify({ query: { customer_id: 10 }, update: { $inc: { total: 1 } } }).queryPlanner.winningPlan.stage, 'SINGLE_SHARD');
x = orders.explain('executionStats').aggregate([{ $match: { customer_id: { $gte: 1000, $lt: 2000 } } }, { $group: { _id: '$total', n: { $sum: 1 } } }]);
same('aggregate', [Object.keys(x.shards), x.mergeType, x.splitPipeline.mergerPart.length], [['shard03'], 'mongos', 1]);

// Hashed: neighbours lie apart, equality finds one chunk, a range asks all.
sh.shardCollection('mydb.hashed', { order_id: 'hashed' });
mydb.hashed.insertMany([...Array(300).keys()].map((i) => ({ order_id: i })));
same('every shard has chunks before the first insert', plan(mydb.hashed.find()).shards.length, 3);
same('hashed equality', plan(mydb.hashed.find({ order_id: 7 })).stage, 'SINGLE_SHARD');
same('hashed equality, other number type', plan(mydb.hashed.find({ order_id: NumberLong('7') })).chunks, 1);
same('hashed range', plan(mydb.hashed.find({ order_id: { $gt: 7 } })).targeting, 'broadcast');
same('known answer', convertShardKeyToHashed('string to hash'), NumberLong('763543691661428748'));

// Figures by shard.
const d = orders.getShardDistribution().value;
same('distribution', [d.Totals.docs, d.Totals.chunks], [700, 7]);
const st = orders.stats();
same('stats', [st.sharded, Number(st.count), Object.keys(st.shards).sort()], [true, 700, ['shard01', 'shard02', 'shard03']]);
same('location', orders.getShardLocation(), { shards: ['shard01', 'shard02', 'shard03'], sharded: true });
same('version', orders.getShardVersion().ok, 1);
same('dbStats', Number(mydb.stats().objects), 1000);
ok('operations under way', db.currentOp().inprog.length > 0);
print('TARGETING OK');
