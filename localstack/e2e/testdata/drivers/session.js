// A session of an application with the Node.js driver.
//
//	node session.js URI work FILE    works on a sharded collection beside a model in memory,
//	                                 and leaves what must be there in FILE
//	node session.js URI again FILE   requires that it is there
//
// At the line "KILL A ROUTER" somebody kills one of the URI's two routers: the writes that
// follow must all succeed, save that the driver may fail to send one: see sent. NODE_PATH names the folder with the package mongodb.
const fs = require('fs');
const { MongoClient, BSON } = require('mongodb');

const [uri, phase, file] = process.argv.slice(2);
const client = new MongoClient(uri, { retryWrites: true });
const coll = client.db('node').collection('docs');
const model = new Map(); // _id -> document

function same(what, got, want) {
  const g = BSON.EJSON.stringify(got), w = BSON.EJSON.stringify(want);
  if (g !== w) throw new Error(`${what}: got ${g.slice(0, 500)}, want ${w.slice(0, 500)}`);
}
async function fails(what, name, f) {
  try { await f(); } catch (e) { same(what, e.constructor.name, name); return e; }
  throw new Error(`${what}: no error`);
}
const all = () => [...model.values()];
const byID = (a, b) => (a._id < b._id ? -1 : 1);
const put = (d) => model.set(d._id, d);
const id = (i) => `c${i % 8}-${String(i).padStart(6, '0')}`;
const doc = (i) => ({ _id: id(i), i, g: i % 7, tags: [`t${i % 3}`, `u${i % 5}`], deep: { x: i * 1.5 } });
const range = (from, to) => Array.from({ length: to - from }, (_, k) => from + k);

async function insert() {
  let r = await coll.insertMany(range(0, 2000).map(doc));
  same('insertMany', r.insertedCount, 2000);
  range(0, 2000).map(doc).forEach(put);
  r = await coll.insertMany(range(2000, 3000).map(doc), { ordered: false });
  same('unordered insertMany', r.insertedCount, 1000);
  range(2000, 3000).map(doc).forEach(put);
  let e = await fails('ordered duplicate', 'MongoBulkWriteError', () => coll.insertMany([doc(3000), doc(5), doc(3001)]));
  same('ordered duplicate', [e.code, e.insertedCount, e.writeErrors.map((w) => w.index)], [11000, 1, [1]]);
  put(doc(3000));
  e = await fails('unordered duplicates', 'MongoBulkWriteError', () => coll.insertMany([doc(5), doc(3002), doc(6), doc(3003)], { ordered: false }));
  same('unordered duplicates', [e.code, e.insertedCount, e.writeErrors.map((w) => w.index)], [11000, 2, [0, 2]]);
  [3002, 3003].map(doc).forEach(put);
}

async function read() {
  const seen = new Set();
  let n = 0;
  for await (const d of coll.find({}, { batchSize: 101 })) { seen.add(d._id); n++; }
  same('find over many batches', [n, seen.size], [model.size, model.size]);
  same('sort, skip, limit', await coll.find({ g: 3 }, { projection: { i: 1 } }).sort({ i: -1 }).skip(50).limit(20).batchSize(7).toArray(),
    all().filter((d) => d.g === 3).sort((a, b) => b.i - a.i).slice(50, 70).map((d) => ({ _id: d._id, i: d.i })));
  same('all in order', await coll.find().sort({ _id: 1 }).batchSize(500).toArray(), all().sort(byID));
  same('one', await coll.findOne({ _id: id(17) }), model.get(id(17)));
  same('nothing', await coll.findOne({ _id: 'nobody' }), null);
  same('into arrays and documents', await coll.countDocuments({ tags: 't1', 'deep.x': { $gt: 300 } }), all().filter((d) => d.tags.includes('t1') && d.deep.x > 300).length);
  same('countDocuments', await coll.countDocuments({ i: { $gte: 100, $lt: 900 } }), all().filter((d) => d.i >= 100 && d.i < 900).length);
  same('estimatedDocumentCount', await coll.estimatedDocumentCount(), model.size);
  same('distinct', (await coll.distinct('tags')).sort(), [...new Set(all().flatMap((d) => d.tags))].sort());
  const groups = await coll.aggregate([{ $match: { i: { $lt: 2500 } } }, { $group: { _id: '$g', n: { $sum: 1 }, most: { $max: '$i' } } }, { $sort: { _id: 1 } }]).toArray();
  same('$match, $group, $sort', groups, range(0, 7).map((g) => {
    const of = all().filter((d) => d.i < 2500 && d.g === g);
    return { _id: g, n: of.length, most: Math.max(...of.map((d) => d.i)) };
  }));
  same('$count', await coll.aggregate([{ $match: { g: 2 } }, { $count: 'n' }]).toArray(), [{ n: all().filter((d) => d.g === 2).length }]);
}

async function change() {
  let r = await coll.updateOne({ _id: id(1) }, { $set: { name: 'one' }, $inc: { i: 1_000_000 } });
  same('updateOne', [r.matchedCount, r.modifiedCount], [1, 1]);
  Object.assign(model.get(id(1)), { i: 1_000_001, name: 'one' });
  r = await coll.updateMany({ g: 4 }, { $inc: { 'deep.x': 1 } });
  const four = all().filter((d) => d.g === 4);
  same('updateMany', [r.matchedCount, r.modifiedCount], [four.length, four.length]);
  four.forEach((d) => { d.deep.x += 1; });
  r = await coll.updateOne({ _id: 'c3-upserted' }, { $setOnInsert: { i: -1 }, $set: { g: 9 } }, { upsert: true });
  same('upsert', [r.matchedCount, r.upsertedCount, r.upsertedId], [0, 1, 'c3-upserted']);
  put(await coll.findOne({ _id: 'c3-upserted' }));
  r = await coll.replaceOne({ _id: id(2) }, { whole: 'new' });
  same('replaceOne', r.modifiedCount, 1);
  put({ _id: id(2), whole: 'new' });
  same('findOneAndUpdate', await coll.findOneAndUpdate({ _id: id(3) }, { $inc: { i: 5 } }, { returnDocument: 'after', projection: { i: 1 } }), { _id: id(3), i: 8 });
  model.get(id(3)).i = 8;
  same('findOneAndDelete', (await coll.findOneAndDelete({ _id: id(4) }))._id, id(4));
  model.delete(id(4));
  same('deleteOne', (await coll.deleteOne({ _id: id(5) })).deletedCount, 1);
  model.delete(id(5));
  const some = all().filter((d) => d.i >= 1500 && d.i < 1600);
  same('deleteMany', (await coll.deleteMany({ i: { $gte: 1500, $lt: 1600 } })).deletedCount, some.length);
  some.forEach((d) => model.delete(d._id));
  const e = await fails('bulkWrite', 'MongoBulkWriteError', () => coll.bulkWrite([
    { insertOne: { document: doc(4000) } }, { updateOne: { filter: { _id: id(7) }, update: { $set: { bulk: true } } } },
    { insertOne: { document: doc(8) } }, { deleteOne: { filter: { _id: id(9) } } },
    { replaceOne: { filter: { _id: id(4001) }, replacement: { r: 1 }, upsert: true } },
  ], { ordered: false }));
  same('bulkWrite', [e.code, e.result.insertedCount, e.result.modifiedCount, e.result.deletedCount, e.result.upsertedCount, e.writeErrors.map((w) => w.index)], [11000, 1, 1, 1, 1, [2]]);
  put(doc(4000)); model.get(id(7)).bulk = true; model.delete(id(9)); put({ _id: id(4001), r: 1 });
  await client.withSession(async (session) => {
    await coll.updateOne({ _id: id(10) }, { $inc: { s: 1 } }, { session });
    await coll.updateOne({ _id: id(10) }, { $inc: { s: 1 } }, { session });
    same('session', (await coll.findOne({ _id: id(10) }, { session })).s, 2);
  });
  model.get(id(10)).s = 2;
}

// sent repeats what the driver never sent. A server that dies closes its sockets; in the instant
// before the driver hears of it, Node.js refuses to write ("ended by the other party", EPIPE), and
// driver 7.9 hands that to the application as it is, not as the network error that it would retry.
async function sent(write) {
  try { return await write(); } catch (e) {
    if (e.code !== 'EPIPE' || !/ended by the other party/.test(e.message)) throw e;
    console.log('never sent, and repeated: ' + e.message);
    return write();
  }
}

async function whileARouterDies() {
  console.log('KILL A ROUTER');
  for (let n = 0; n < 300; n++) {
    await sent(() => coll.insertOne(doc(5000 + n)));
    put(doc(5000 + n));
    await sent(() => coll.updateOne({ _id: id(20) }, { $inc: { killed: 1 } }));
    await new Promise((r) => setTimeout(r, 3));
  }
  model.get(id(20)).killed = 300;
}

async function work() {
  await client.db('admin').command({ shardCollection: 'node.docs', key: { _id: 1 }, splitPoints: [{ _id: 'c2' }, { _id: 'c4' }, { _id: 'c6' }] });
  await insert();
  await read();
  await change();
  await whileARouterDies();
  fs.writeFileSync(file, BSON.EJSON.stringify(all().sort(byID)));
}

async function main() {
  if (phase === 'work') await work();
  const want = BSON.EJSON.parse(fs.readFileSync(file, 'utf8'));
  const got = await coll.find().sort({ _id: 1 }).batchSize(300).toArray();
  same('number of documents', got.length, want.length);
  got.forEach((d, i) => same(`document ${i}`, d, want[i]));
  same('count', await coll.countDocuments(), want.length);
  console.log(`SESSION OK ${got.length} documents`);
}

main().then(() => client.close()).catch((e) => { console.log(e.stack); process.exit(1); });
