"""A session of an application with PyMongo, as old as 3.11.

    python3 session.py URI work FILE    works on a sharded collection beside a model in
                                        memory, and leaves what must be there in FILE
    python3 session.py URI again FILE   requires that it is there

At the line "KILL A ROUTER" somebody kills one of the URI's two routers: the writes that
follow must all succeed.
"""
import sys
import time

from bson import json_util
from pymongo import (ASCENDING, DESCENDING, DeleteOne, InsertOne, MongoClient, ReplaceOne,
                     ReturnDocument, UpdateOne)
from pymongo.errors import BulkWriteError

uri, phase, path = sys.argv[1:4]
client = MongoClient(uri, retryWrites=True)
coll = client.python.docs
model = {}


def same(what, got, want):
    if got != want:
        print("%s: got %.500r, want %.500r" % (what, got, want))
        sys.exit(1)


def bulk_error(what, f):
    try:
        f()
    except BulkWriteError as e:
        return e.details
    same(what, "no error", "BulkWriteError")


def key(i):
    return "c%d-%06d" % (i % 8, i)


def doc(i):
    return {"_id": key(i), "i": i, "g": i % 7, "tags": ["t%d" % (i % 3), "u%d" % (i % 5)], "deep": {"x": i * 1.5}}


def put(*docs):
    for d in docs:
        model[d["_id"]] = d


def insert():
    first, more = [doc(i) for i in range(2000)], [doc(i) for i in range(2000, 3000)]
    same("insert_many", len(coll.insert_many(first).inserted_ids), 2000)
    put(*first)
    same("unordered insert_many", len(coll.insert_many(more, ordered=False).inserted_ids), 1000)
    put(*more)
    d = bulk_error("ordered duplicate", lambda: coll.insert_many([doc(3000), doc(5), doc(3001)]))
    same("ordered duplicate", [d["nInserted"]] + [(w["index"], w["code"]) for w in d["writeErrors"]], [1, (1, 11000)])
    put(doc(3000))
    d = bulk_error("unordered duplicates", lambda: coll.insert_many([doc(5), doc(3002), doc(6), doc(3003)], ordered=False))
    same("unordered duplicates", [d["nInserted"]] + sorted(w["index"] for w in d["writeErrors"]), [2, 0, 2])
    put(doc(3002), doc(3003))


def read():
    ids = [d["_id"] for d in coll.find({}, batch_size=101)]
    same("find over many batches", (len(ids), len(set(ids))), (len(model), len(model)))
    page = coll.find({"g": 3}, {"i": 1}).sort("i", DESCENDING).skip(50).limit(20).batch_size(7)
    of3 = sorted((d for d in model.values() if d["g"] == 3), key=lambda d: -d["i"])
    same("sort, skip, limit", list(page), [{"_id": d["_id"], "i": d["i"]} for d in of3[50:70]])
    same("one", coll.find_one({"_id": key(17)}), model[key(17)])
    same("nothing", coll.find_one({"_id": "nobody"}), None)
    same("into arrays and documents", coll.count_documents({"tags": "t1", "deep.x": {"$gt": 300}}),
         sum(1 for d in model.values() if "t1" in d["tags"] and d["deep"]["x"] > 300))
    same("estimated_document_count", coll.estimated_document_count(), len(model))
    same("distinct", sorted(coll.distinct("tags")), sorted({t for d in model.values() for t in d["tags"]}))
    groups = coll.aggregate([{"$match": {"i": {"$lt": 2500}}}, {"$group": {"_id": "$g", "n": {"$sum": 1}, "most": {"$max": "$i"}}}, {"$sort": {"_id": 1}}])
    want = []
    for g in range(7):
        of = [d["i"] for d in model.values() if d["i"] < 2500 and d["g"] == g]
        want.append({"_id": g, "n": len(of), "most": max(of)})
    same("$match, $group, $sort", list(groups), want)
    same("$count", list(coll.aggregate([{"$match": {"g": 2}}, {"$count": "n"}])), [{"n": sum(1 for d in model.values() if d["g"] == 2)}])


def change():
    r = coll.update_one({"_id": key(1)}, {"$set": {"name": "one"}, "$inc": {"i": 1000000}})
    same("update_one", (r.matched_count, r.modified_count), (1, 1))
    model[key(1)].update(i=1000001, name="one")
    four = [d for d in model.values() if d["g"] == 4]
    r = coll.update_many({"g": 4}, {"$inc": {"deep.x": 1}})
    same("update_many", (r.matched_count, r.modified_count), (len(four), len(four)))
    for d in four:
        d["deep"]["x"] += 1
    r = coll.update_one({"_id": "c3-upserted"}, {"$setOnInsert": {"i": -1}, "$set": {"g": 9}}, upsert=True)
    same("upsert", (r.matched_count, r.upserted_id), (0, "c3-upserted"))
    put(coll.find_one({"_id": "c3-upserted"}))
    same("replace_one", coll.replace_one({"_id": key(2)}, {"whole": "new"}).modified_count, 1)
    put({"_id": key(2), "whole": "new"})
    same("find_one_and_update", coll.find_one_and_update({"_id": key(3)}, {"$inc": {"i": 5}}, {"i": 1}, return_document=ReturnDocument.AFTER), {"_id": key(3), "i": 8})
    model[key(3)]["i"] = 8
    same("find_one_and_delete", coll.find_one_and_delete({"_id": key(4)})["_id"], key(4))
    same("delete_one", coll.delete_one({"_id": key(5)}).deleted_count, 1)
    gone = [k for k, d in model.items() if 1500 <= d.get("i", 0) < 1600] + [key(4), key(5)]
    same("delete_many", coll.delete_many({"i": {"$gte": 1500, "$lt": 1600}}).deleted_count, len(gone) - 2)
    for k in gone:
        del model[k]
    d = bulk_error("bulk_write", lambda: coll.bulk_write([
        InsertOne(doc(4000)), UpdateOne({"_id": key(7)}, {"$set": {"bulk": True}}), InsertOne(doc(8)),
        DeleteOne({"_id": key(9)}), ReplaceOne({"_id": key(4001)}, {"r": 1}, upsert=True)], ordered=False))
    same("bulk_write", [d[k] for k in ("nInserted", "nModified", "nRemoved", "nUpserted")] + [w["index"] for w in d["writeErrors"]], [1, 1, 1, 1, 2])
    put(doc(4000), {"_id": key(4001), "r": 1})
    model[key(7)]["bulk"] = True
    del model[key(9)]
    with client.start_session() as session:
        for _ in range(2):
            coll.update_one({"_id": key(10)}, {"$inc": {"s": 1}}, session=session)
        same("session", coll.find_one({"_id": key(10)}, session=session)["s"], 2)
    model[key(10)]["s"] = 2


def while_a_router_dies():
    print("KILL A ROUTER", flush=True)
    for n in range(300):
        coll.insert_one(doc(5000 + n))
        put(doc(5000 + n))
        coll.update_one({"_id": key(20)}, {"$inc": {"killed": 1}})
        time.sleep(0.003)
    model[key(20)]["killed"] = 300


if phase == "work":
    client.admin.command("shardCollection", "python.docs", key={"_id": 1}, splitPoints=[{"_id": "c2"}, {"_id": "c4"}, {"_id": "c6"}])
    insert()
    read()
    change()
    while_a_router_dies()
    with open(path, "w") as f:
        f.write(json_util.dumps([model[k] for k in sorted(model)]))
with open(path) as f:
    want = json_util.loads(f.read())
got = list(coll.find().sort("_id", ASCENDING).batch_size(300))
same("number of documents", len(got), len(want))
for g, w in zip(got, want):
    same("document", g, w)
same("count", coll.count_documents({}), len(want))
print("SESSION OK %d documents" % len(got))
