// Shard keys of collections that hold documents: choosing one, what is said about it, adding
// fields to it, and what a key asks of documents.
const shop = db.getSiblingDB('shop'), admin = db.getSiblingDB('admin');
const docs = [];
for (let i = 0; i < 5000; i++) docs.push({ customer: (i * 7919) % 1250, at: new Date(1700000000000 + i * 1000), state: ['ca', 'ny', 'tx'][i % 3], n: i, pad: 'x'.repeat(i % 200) });
shop.orders.insertMany(docs);
const before = shop.orders.aggregate([{ $group: { _id: null, n: { $sum: '$n' }, docs: { $sum: 1 } } }]).toArray();

// A populated collection under another key, with what speaks against it.
let r = sh.shardCollection('shop.orders', { state: 1 });
ok('few values', r.warnings.some((w) => w.includes('3 values of the shard key { state: 1 }')));
ok('the scope of _id', r.note.includes('_id is unique together with the shard key'));
same('nothing is lost', shop.orders.aggregate([{ $group: { _id: null, n: { $sum: '$n' }, docs: { $sum: 1 } } }]).toArray(), before);
same('one shard', plan(shop.orders.find({ state: 'ny' })).stage, 'SINGLE_SHARD');
same('three values', shop.orders.countDocuments({ state: 'ny' }), 1667);
fails('another key', 23, () => sh.shardCollection('shop.orders', { customer: 1 }));

// Fields are added behind the key: MongoDB asks for an index first.
fails('no extension', 72, () => assertOk(admin.runCommand({ refineCollectionShardKey: 'shop.orders', key: { customer: 1 } })));
fails('no index', 72, () => assertOk(admin.runCommand({ refineCollectionShardKey: 'shop.orders', key: { state: 1, customer: 1 } })));
shop.orders.createIndex({ state: 1, customer: 1 });
same('refined', admin.runCommand({ refineCollectionShardKey: 'shop.orders', key: { state: 1, customer: 1 } }).ok, 1);
same('still all', shop.orders.aggregate([{ $group: { _id: null, n: { $sum: '$n' }, docs: { $sum: 1 } } }]).toArray(), before);
sh.splitAt('shop.orders', { state: 'ny', customer: 500 });
same('one value is two chunks', plan(shop.orders.find({ state: 'ny', customer: 7 })).stage, 'SINGLE_SHARD');

// What grows with time is said, and a hashed key spreads it.
r = sh.shardCollection('shop.events', { _id: 1 });
ok('ObjectIds grow', r.warnings[0].includes('grow with time'));
shop.logs.insertMany(docs.map((d) => ({ at: d.at, n: d.n })));
r = sh.shardCollection('shop.logs', { at: 1 });
ok('dates grow', r.warnings[0].includes('date that grows'));
shop.clicks.insertMany(docs.map((d) => ({ n: d.n })));
r = sh.shardCollection('shop.clicks', { _id: 'hashed' });
same('no warning', r.warnings, undefined);
ok('hashed and spread', new Set(db.getSiblingDB('config').chunks.find({ 'min._id': { $type: 'long' } }).toArray().map((c) => c.shard)).size > 1);
same('all clicks', shop.clicks.countDocuments({}), 5000);

// What a key asks of documents.
sh.shardCollection('shop.strict', { tenant: 1 });
shop.strict.insertOne({ _id: 1 });
shop.runCommand({ collMod: 'strict', requireShardKey: true });
ok('the field is named', fails('required', 61, () => shop.strict.insertOne({ _id: 2 })).message.includes('lacks tenant'));
const e = fails('upsert', 61, () => shop.strict.updateOne({ name: 'x' }, { $set: { v: 1 } }, { upsert: true }));
ok('the filter to type', e.message.includes('"tenant"'));
same('upsert by the key', shop.strict.updateOne({ tenant: 5, name: 'x' }, { $set: { v: 1 } }, { upsert: true }).upsertedCount, 1);
same('nothing runs', admin.aggregate([{ $currentOp: {} }, { $match: { desc: 'ReshardingCoordinatorService' } }]).toArray(), []);
shop.mixed.insertMany([{ _id: 1, k: [1, 2] }, { _id: 2, k: 3 }]);
ok('the document is named', fails('an array', 2, () => sh.shardCollection('shop.mixed', { k: 1 })).message.includes('_id {"$numberInt":"1"}'));
same('as it was', shop.mixed.countDocuments({}), 2);

function assertOk(x) { if (!x.ok) throw x; }
print('KEYS OK');
