package history

import (
	"encoding/hex"
	"fmt"

	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
)

// WriteID names a client's write in a history and in the log: the 16 bytes of its session,
// its transaction number, and the statement's place in the command.
func WriteID(session [16]byte, txn int64, statement int) string {
	return fmt.Sprintf("%s/%d/%d", hex.EncodeToString(session[:]), txn, statement)
}

// Logged adds to ids those of the client writes in one log object that changed something,
// each with its number in its chunk, which orders the writes of a document: it goes with the
// chunk when that moves, is split or merged.
// It reports whether the object is a seal. Errors: Corrupt, Invalid.
func Logged(body []byte, ids map[string]manifest.Seq) (seal bool, err error) {
	header, records, err := wal.Decode(body)
	if err != nil {
		return false, err
	}
	for _, r := range records {
		if r.Retry == nil || r.Op == wal.RetryOnly {
			continue
		}
		op := &r.Retry.Op
		ids[WriteID([16]byte(op.Session[:16]), op.Txn, int(op.Stmt))] = r.Seq
	}
	return header.Kind == wal.KindSeal, nil
}
