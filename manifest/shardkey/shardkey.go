// Package shardkey turns documents into keys: byte strings whose memcmp order is MongoDB's
// order of the values, so that a chunk is a byte range and a lookup is a search.
//
// The words: a Pattern is the list of fields that a collection is cut by. The shard key of
// a document is what these fields hold, as bytes. The row key is the shard key followed by
// the _id (unless _id is already one of the fields), so that it is unique. A Bound is a
// place to cut between two keys; a Range is what lies between two bounds.
//
//	row key of {region: "eu", at: ISODate(...), _id: 7} under {region: 1, at: "hashed"}
//
//	20 65 75 00 01 | 10 8 bytes of the hash | 10 C0 1C 00 00 00 00 00 00 00
//	region "eu"      at, hashed               _id 7
//	\______________ shard key _____________/
//
// Every value is a class byte and a payload. The classes stand in the order in which
// MongoDB sorts types; the payload ends itself, so that no value's bytes are the beginning
// of another's and fields can simply follow one another:
//
//	01 MinKey       nothing                     40 ObjectId     12 bytes
//	05 undefined    nothing                     48 bool         00 or 01
//	0A null,missing nothing                     50 date         8 B, sign flipped
//	10 number       see below                   58 timestamp    8 B
//	20 string,symbol  bytes, 00 01 *            60 regex        pattern 00 options 00
//	28 object       (class name 00 payload)* 00 68 dbPointer    4 B length, name, 12 bytes
//	30 array        value* 00                   70 code         bytes, 00 01 *
//	38 binary       4 B length, subtype, bytes  78 code+scope   bytes, 00 01 *, object
//	F0 MaxKey       nothing                     *  a 00 inside is 00 FF
//
// Integers are big-endian. A descending field has all its bytes inverted; the inverted
// classes are no classes, so a reader sees which way a value runs.
//
// A number is 8 order-preserving bytes of the largest double that is not above it, then 00
// when the double is the number, else 01 and 16 bytes that order the numbers between two
// neighbouring doubles: decimal exponent and 34-digit coefficient, inverted when negative.
// So int32, int64, double and decimal128 that are equal get equal bytes, and the order is
// that of the real numbers, with NaN lowest. (MongoDB rounds a double to 34 digits before
// it compares it with a decimal; here 0.1 the double stays what it is, slightly above 0.1
// the decimal.)
//
// A hashed field is the class of numbers and the 8 bytes of the 64-bit hash, nothing else:
// equal hashes are told apart by the fields behind it. The hash is MongoDB's own, so that
// zones and split points computed with its tools mean the same here.
//
// Documents are taken as validated: a malformed one gives an error where there is one to
// give, otherwise some key, but never a panic. Keys read from storage are checked.
package shardkey

import "go.mongodb.org/mongo-driver/v2/bson"

// Field is one field of a pattern: a dotted path, ascending unless Hashed or Descending.
type Field struct {
	Path       string
	Hashed     bool
	Descending bool // for secondary indexes; a shard key refuses it
}

// Pattern is a shard key pattern: its fields in order. The zero Pattern is none.
type Pattern struct{ Fields []Field }

// Bound is a cut point of the key space: key bytes and what users see. Key is nil at
// either open end, where BSON is all MinKey or all MaxKey.
type Bound struct {
	Key  []byte
	BSON bson.Raw
}
