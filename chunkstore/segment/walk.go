package segment

import (
	"fmt"

	"github.com/granarydb/granary/manifest"
)

// Walk looks at all that a whole object holds, without a reference: whoever asks what a bucket
// has must not depend on what a root says about it. It calls row for every row and retry for
// every retry entry, in the order of the object; what they get aliases memory that changes.
// The index and filter, which say nothing that rows do not say, are passed over. Errors:
// Corrupt, Invalid for a newer format, and those of the calls.
func Walk(id manifest.SegmentID, object []byte, row func(Row) error, retry func(RetryEntry) error) error {
	if len(object) < headerSize+footerSize {
		return fmt.Errorf("walk segment %s: %w", id, corruptf("%d bytes", len(object)))
	}
	end := len(object) - footerSize
	for at := headerSize; at < end; {
		f, err := parseFrame(object[at:end], id.Random, uint64(at), maxTailBytes)
		if err == nil {
			err = walkFrame(object[at:end], id.Random, uint64(at), f, row, retry)
		}
		if err != nil {
			return fmt.Errorf("walk segment %s: %w", id, err)
		}
		at += f.size()
	}
	return nil
}

func walkFrame(b []byte, n name, off uint64, f frame, row func(Row) error, retry func(RetryEntry) error) error {
	if f.kind != typeRows && f.kind != typeRetry {
		return nil
	}
	p, _, err := openFrame(b, n, off, maxBlockBytes, f.kind)
	if err != nil {
		return err
	}
	if f.kind == typeRetry {
		entries, err := parseRetries(p)
		for i := 0; err == nil && i < len(entries); i++ {
			err = retry(entries[i])
		}
		return err
	}
	blk, err := parseBlock(p)
	if err != nil {
		return err
	}
	var rows [restartEvery]Row
	var keys arena
	for g := range blk.groups {
		for i := range blk.group(g, &rows, &keys) {
			if err := row(rows[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
