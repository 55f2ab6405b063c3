// Every sh helper of mongosh, and what it comes to here: "works" (the answer is held against
// what it must say), or a code with a sentence that says what there is instead.
const t = db.getSiblingDB('tbl');
t.dropDatabase();
const notThere = 115; // CommandNotSupported
const rows = [];
const known = new Set();

function works(name, fn, good = (r) => r.ok === 1) {
  known.add(name);
  let r;
  try { r = fn(); } catch (e) { print(`FAILED sh.${name}: ${e.codeName}: ${e.message}`); quit(1); }
  if (!good(r)) { print(`FAILED sh.${name}: ${EJSON.stringify(r)}`); quit(1); }
  rows.push([name, 'works']);
}
function refused(name, code, text, fn) {
  known.add(name);
  const e = fails('sh.' + name, code, fn);
  if (!text.test(e.message)) { print(`FAILED sh.${name}: ${e.message}`); quit(1); }
  rows.push([name, `${e.codeName}: ${e.message}`]);
}
const chunk = (k) => db.getSiblingDB('config').chunks.find({ uuid: db.getSiblingDB('config').collections.findOne({ _id: 'tbl.c' }).uuid })
  .sort({ min: 1 }).toArray().filter((c) => c.min.k === k)[0];

works('stopBalancer', () => sh.stopBalancer());
same('stopped', [sh.getBalancerState(), sh.isBalancerRunning().mode], [false, 'off']);
works('startBalancer', () => sh.startBalancer());
same('started', [sh.getBalancerState(), sh.isBalancerRunning().mode], [true, 'full']);
works('setBalancerState', () => sh.setBalancerState(false)); // and the chunks stay where this puts them
works('enableSharding', () => sh.enableSharding('tbl'));
works('shardCollection', () => sh.shardCollection('tbl.c', { k: 1 }), (r) => r.collectionsharded === 'tbl.c');
t.c.insertMany([...Array(100).keys()].map((k) => ({ k })));
t.plain.insertOne({ _id: 1 });
works('splitAt', () => sh.splitAt('tbl.c', { k: 50 }));
works('splitFind', () => sh.splitFind('tbl.c', { k: 10 }));
works('moveChunk', () => sh.moveChunk('tbl.c', { k: 60 }, 'shard03'), (r) => r.ok === 1 && r.millis >= 0);
ok('moved', chunk(50).shard === 'shard03');
works('moveRange', () => sh.moveRange('tbl.c', 'shard02', { k: 80 }, { k: 90 }));
ok('moved', chunk(80).shard === 'shard02' && chunk(90).shard === 'shard03');
works('moveCollection', () => sh.moveCollection('tbl.plain', 'shard02'));
same('moved', t.plain.getShardLocation(), { shards: ['shard02'], sharded: false });
works('listShards', () => sh.listShards(), (r) => r.length === 3 && r[0]._id === 'shard01');
works('isConfigShardEnabled', () => sh.isConfigShardEnabled(), (r) => r.enabled === false);
works('getShardedDataDistribution', () => sh.getShardedDataDistribution().toArray(),
  (r) => r[0].ns === 'tbl.c' && r[0].shards.reduce((n, s) => n + Number(s.numOwnedDocuments), 0) === 100);
works('checkMetadataConsistency', () => sh.checkMetadataConsistency().toArray(), (r) => r.length === 0);
works('status', () => sh.status(), (r) => {
  const s = r.value, c = s.databases.find((d) => d.database._id === 'tbl').collections['tbl.c'];
  return s.shards.length === 3 && s['active mongoses'].length === 1 && s['active mongoses'][0]['8.0.0'] === 1 &&
    s.balancer['Migration Results for the last 24 hours'][2] === 'Success' && c.shardKey.k === 1 &&
    c.chunkMetadata.reduce((n, x) => n + x.nChunks, 0) === 5 && c.chunks.length === 5 && c.chunks[0]['on shard'] !== undefined;
});
works('balancerCollectionStatus', () => sh.balancerCollectionStatus('tbl.c'), (r) => r.chunkSize === 64 && typeof r.balancerCompliant === 'boolean');
const settings = (id) => db.getSiblingDB('config').settings.findOne({ _id: id });
const coll = () => db.getSiblingDB('config').collections.findOne({ _id: 'tbl.c' });
const one = (r) => r.acknowledged && r.matchedCount + r.upsertedCount === 1;
works('disableBalancing', () => sh.disableBalancing('tbl.c'), (r) => one(r) && coll().noBalance === true);
works('enableBalancing', () => sh.enableBalancing('tbl.c'), (r) => one(r) && coll().noBalance === false);
works('disableMigrations', () => sh.disableMigrations('tbl.c'), (r) => r.ok === 1 && coll().permitMigrations === false);
works('enableMigrations', () => sh.enableMigrations('tbl.c'), (r) => r.ok === 1 && coll().permitMigrations !== false);
works('disableAutoSplit', () => sh.disableAutoSplit(), (r) => one(r) && settings('autosplit').enabled === false);
works('enableAutoSplit', () => sh.enableAutoSplit(), (r) => one(r) && settings('autosplit').enabled === true);
works('stopAutoMerger', () => sh.stopAutoMerger(), (r) => one(r) && settings('automerge').enabled === false);
works('startAutoMerger', () => sh.startAutoMerger(), (r) => one(r) && settings('automerge').enabled === true);
works('isAutoMergerEnabled', () => sh.isAutoMergerEnabled(), (r) => r === true);
works('disableAutoMerger', () => sh.disableAutoMerger('tbl.c'), (r) => one(r) && coll().enableAutoMerge === false);
works('enableAutoMerger', () => sh.enableAutoMerger('tbl.c'), (r) => one(r) && coll().enableAutoMerge === undefined);
works('addShard', () => sh.addShard('shard04'), (r) => r.shardAdded === 'shard04');
for (const state of ['started', 'completed']) same('removeShard', db.adminCommand({ removeShard: 'shard04' }).state, state);
works('getBalancerState', () => sh.getBalancerState(), (r) => typeof r === 'boolean');
works('isBalancerRunning', () => sh.isBalancerRunning(), (r) => r.ok === 1 && typeof r.inBalancerRound === 'boolean');
works('addShardTag', () => sh.addShardTag('shard01', 'EU'));
works('addShardToZone', () => sh.addShardToZone('shard02', 'EU'));
works('addTagRange', () => sh.addTagRange('tbl.c', { k: 0 }, { k: 5 }, 'EU'));
works('removeTagRange', () => sh.removeTagRange('tbl.c', { k: 0 }, { k: 5 }));
works('updateZoneKeyRange', () => sh.updateZoneKeyRange('tbl.c', { k: 0 }, { k: 5 }, 'EU'));
works('removeRangeFromZone', () => sh.removeRangeFromZone('tbl.c', { k: 0 }, { k: 5 }));
works('removeShardTag', () => sh.removeShardTag('shard01', 'EU'));
works('removeShardFromZone', () => sh.removeShardFromZone('shard02', 'EU'));
const noReshard = 339; // NoSuchReshardCollection: it is over before another helper could be sent
works('reshardCollection', () => sh.reshardCollection('tbl.c', { k: 'hashed' }), (r) => r.ok === 1 && coll().key.k === 'hashed' && t.c.countDocuments({}) === 100);
refused('commitReshardCollection', noReshard, /in-progress/, () => sh.commitReshardCollection('tbl.c'));
refused('abortReshardCollection', noReshard, /in-progress/, () => sh.abortReshardCollection('tbl.c'));
t.d.insertMany([...Array(50).keys()].map((x) => ({ x })));
works('shardAndDistributeCollection', () => sh.shardAndDistributeCollection('tbl.d', { x: 1 }), (r) => r.ok === 1 && t.d.countDocuments({}) === 50);
works('unshardCollection', () => sh.unshardCollection('tbl.c', 'shard01'), (r) => r.ok === 1 && t.c.countDocuments({ k: { $lt: 10 } }) === 10);
same('unsharded', t.c.getShardLocation(), { shards: ['shard01'], sharded: false });
refused('abortUnshardCollection', noReshard, /in-progress/, () => sh.abortUnshardCollection('tbl.c'));
refused('abortMoveCollection', notThere, /nothing to abort/, () => sh.abortMoveCollection('tbl.plain'));
refused('shardDrainingStatus', notThere, /removeShard/, () => sh.shardDrainingStatus());
refused('getTransitionToDedicatedConfigServerStatus', notThere, /no config servers/, () => sh.getTransitionToDedicatedConfigServerStatus());

for (const [name, what] of rows) print(`sh.${name.padEnd(45)} ${what}`);
const all = Object.getOwnPropertyNames(Object.getPrototypeOf(sh)).filter((n) => /^[a-z]/.test(n) && !/^(constructor|help|toString|asPrintable)$/.test(n));
same('helpers that are not in the table', all.filter((n) => !known.has(n)), []);
print('HELPERS OK');
