// A first session with real files: run by a real mongosh against granary local.
//   GRANARY_VEGA  the data folder of the npm package vega-datasets
const fs = require('fs');
const vega = process.env.GRANARY_VEGA;

const shop = db.getSiblingDB('vega');
shop.dropDatabase();

// --- movies: an unsharded collection, as it comes ---------------------------------------
const movies = JSON.parse(fs.readFileSync(`${vega}/movies.json`)).map((m, i) => ({ _id: i, ...m }));
let r = shop.movies.insertMany(movies);
same('insertMany', Object.keys(r.insertedIds).length, movies.length);
same('countDocuments', shop.movies.countDocuments(), movies.length);
same('estimatedDocumentCount', shop.movies.estimatedDocumentCount(), movies.length);
const title = (m) => m.Title;
const comedies = movies.filter((m) => m['Major Genre'] === 'Comedy');
same('equality', shop.movies.countDocuments({ 'Major Genre': 'Comedy' }), comedies.length);
const rated = movies.filter((m) => m['IMDB Rating'] !== null && m['IMDB Rating'] >= 8.5);
same('range', shop.movies.find({ 'IMDB Rating': { $gte: 8.5 } }).toArray().length, rated.length);
const top = movies.filter((m) => m['IMDB Votes'] !== null).sort((a, b) => b['IMDB Votes'] - a['IMDB Votes'] || a._id - b._id).slice(0, 5);
same('sort and limit', shop.movies.find({}, { Title: 1 }).sort({ 'IMDB Votes': -1, _id: 1 }).limit(5).toArray(), top.map((m) => ({ _id: m._id, Title: m.Title })));
same('or', shop.movies.countDocuments({ $or: [{ 'MPAA Rating': 'G' }, { 'Running Time min': { $gt: 200 } }] }),
  movies.filter((m) => m['MPAA Rating'] === 'G' || m['Running Time min'] !== null && m['Running Time min'] > 200).length);
same('distinct', shop.movies.distinct('MPAA Rating').filter((x) => x !== null).sort(), [...new Set(movies.map((m) => m['MPAA Rating']))].filter((x) => x !== null).sort());

// --- getMore: pages of 100 until the end -------------------------------------------------
const seen = new Set();
const cursor = shop.movies.find().batchSize(100);
while (cursor.hasNext()) seen.add(cursor.next()._id);
same('getMore', seen.size, movies.length);

// --- zipcodes: several chunks over the shards ---------------------------------------------
const lines = fs.readFileSync(`${vega}/zipcodes.csv`, 'utf8').trim().split('\n');
const head = lines[0].trim().split(',');
const zips = lines.slice(1).map((l) => { const f = l.trim().split(','); const d = {}; head.forEach((h, i) => { d[h] = i === 1 || i === 2 ? Number(f[i]) : f[i]; }); return d; });
same('shardCollection', db.adminCommand({ shardCollection: 'vega.zips', key: { zip_code: 1 },
  splitPoints: [{ zip_code: '2' }, { zip_code: '4' }, { zip_code: '6' }, { zip_code: '8' }] }).ok, 1);
const shards = db.adminCommand({ listShards: 1 }).shards.length;
ok('three shards', shards === 3);
for (let i = 0; i < zips.length; i += 5000) shop.zips.insertMany(zips.slice(i, i + 5000));
same('zips', shop.zips.countDocuments(), zips.length);
const z = zips[12345];
same('findOne by key', shop.zips.findOne({ zip_code: z.zip_code }, { _id: 0 }), z);
const texan = zips.filter((d) => d.state === 'TX');
same('broadcast filter', shop.zips.countDocuments({ state: 'TX' }), texan.length);
same('key range', shop.zips.countDocuments({ zip_code: { $gte: '3', $lt: '7' } }), zips.filter((d) => d.zip_code >= '3' && d.zip_code < '7').length);
const byCity = zips.map((d) => d.city + ' ' + d.zip_code).sort();
const got = shop.zips.find({}, { _id: 0, city: 1, zip_code: 1 }).sort({ city: 1, zip_code: 1 }).batchSize(777).toArray().map((d) => d.city + ' ' + d.zip_code);
ok('sorted scatter of everything', got.length === byCity.length && got.every((s, i) => i === 0 || got[i - 1].split(' ')[0] <= s.split(' ')[0] || got[i - 1] <= s));
same('key order, both ends', [shop.zips.find().sort({ zip_code: 1 }).limit(1).toArray()[0].zip_code, shop.zips.find().sort({ zip_code: -1 }).limit(1).toArray()[0].zip_code],
  [zips.map((d) => d.zip_code).sort()[0], zips.map((d) => d.zip_code).sort().at(-1)]);

// --- update, delete, findAndModify --------------------------------------------------------
same('updateOne', shop.movies.updateOne({ _id: 0 }, { $set: { seen: true }, $inc: { views: 2 } }).modifiedCount, 1);
same('after updateOne', [shop.movies.findOne({ _id: 0 }).seen, shop.movies.findOne({ _id: 0 }).views], [true, 2]);
same('updateMany', shop.zips.updateMany({ state: 'TX' }, { $set: { lone: 'star' } }).modifiedCount, texan.length);
same('after updateMany', shop.zips.countDocuments({ lone: 'star' }), texan.length);
same('push', shop.movies.updateOne({ _id: 1 }, { $push: { tags: 'old' } }).modifiedCount, 1);
same('unset', shop.movies.updateOne({ _id: 0 }, { $unset: { seen: '' } }).modifiedCount, 1);
same('replaceOne', shop.movies.replaceOne({ _id: 2 }, { Title: 'another' }).modifiedCount, 1);
same('after replaceOne', shop.movies.findOne({ _id: 2 }), { _id: 2, Title: 'another' });
same('upsert', shop.movies.updateOne({ _id: 'new' }, { $set: { Title: 'upserted' } }, { upsert: true }).insertedId, 'new');
for (let i = 1; i <= 3; i++) same('findAndModify', shop.counters.findAndModify({ query: { _id: 'c' }, update: { $inc: { n: 1 } }, upsert: true, new: true }).n, i);
same('deleteOne', shop.movies.deleteOne({ _id: 'new' }).deletedCount, 1);
same('deleteMany', shop.zips.deleteMany({ state: 'TX' }).deletedCount, texan.length);
same('after deleteMany', shop.zips.countDocuments(), zips.length - texan.length);
const dup = fails('duplicate', 11000, () => shop.movies.insertOne({ _id: 5 }));
ok('E11000 text', /E11000 duplicate key error collection: vega.movies index: _id_ dup key/.test(dup.message));
fails('unknown command', 59, () => db.runCommand({ noSuchThing: 1 }));

// --- catalogue ------------------------------------------------------------------------------
same('collections', shop.getCollectionNames().sort(), ['counters', 'movies', 'zips']);
ok('database is listed', db.adminCommand({ listDatabases: 1 }).databases.some((d) => d.name === 'vega'));
shop.movies.createIndex({ Title: 1 });
same('indexes', shop.movies.getIndexes().map((i) => i.name), ['_id_', 'Title_1']);
shop.counters.drop();
same('drop', shop.getCollectionNames().sort(), ['movies', 'zips']);
print('SESSION OK');
