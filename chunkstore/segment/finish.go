package segment

import "fmt"

// flushBlock compresses the block being built into the body and lists it in the index.
func (w *Writer) flushBlock() {
	if w.block.rows == 0 {
		return
	}
	s := w.appendFrame(typeRows, w.block.finish())
	w.index.add(w.blockSep, int(s.len)-frameHead, w.block.rows, w.blockFlag)
	w.block.reset()
}

// appendFrame appends a frame; rows and retry entries are compressed, the sections of the
// tail are not: a filter does not shrink, and the rest is small.
func (w *Writer) appendFrame(kind byte, payload []byte) (s section) {
	c := Raw
	if kind == typeRows || kind == typeRetry {
		c = w.o.Codec
	}
	w.body, s = appendFrame(w.body, w.id.Random, kind, c, payload)
	return s
}

// Finish completes the object and returns it; the caller owns it. The Writer accepts no
// further call but Refs. Errors: Invalid when rows or retry entries follow the last Cut
// (they would belong to no reference), or when the tail would pass its limit.
func (w *Writer) Finish() (body []byte, tail Tail, err error) {
	if w.cut.rows > 0 || w.cut.firstRetry < len(w.retries) {
		return nil, Tail{}, fmt.Errorf("finish segment %s: %w", w.id, invalidf("rows after the last Cut"))
	}
	w.flushBlock()
	if err := w.appendTail(); err != nil {
		return nil, Tail{}, fmt.Errorf("finish segment %s: %w", w.id, err)
	}
	for i := range w.refs {
		w.refs[i].TailOffset, w.refs[i].TailLength = w.tail.Offset, w.tail.Length
		w.refs[i].Size = uint64(len(w.body))
	}
	return w.body, w.tail, nil
}

// appendTail appends the sections. A few retry entries are part of the tail; many lie
// before it and are read when they are asked for.
func (w *Writer) appendTail() error {
	start := len(w.body)
	retryIndex := w.appendRetries()
	if len(w.body)-start > retryInTailBytes {
		start = len(w.body)
	}
	if len(retryIndex) > 0 {
		s := w.appendFrame(typeRetryIndex, retryIndex)
		w.meta.retryIndexOff, w.meta.retryIndexLen = int64(s.off), int64(s.len)
	}
	var f footer
	if w.meta.rows > 0 {
		f.filter = w.appendFrame(typeFilter, newFilter(w.hashes))
		f.index = w.appendFrame(typeIndex, w.index.finish())
	}
	f.meta = w.appendFrame(typeMeta, w.meta.encode())
	w.body = f.append(w.body)
	if len(w.body)-start > maxTailBytes {
		return invalidf("a tail of %d bytes, above %d: begin another segment earlier", len(w.body)-start, maxTailBytes)
	}
	w.tail = Tail{Offset: uint64(start), Length: uint32(len(w.body) - start)}
	return nil
}

// appendRetries appends the retry frames and returns the payload of their index, empty
// when there are none.
func (w *Writer) appendRetries() []byte {
	if len(w.retries) == 0 {
		return nil
	}
	sortRetries(w.retries)
	start := len(w.body)
	var x indexBuilder
	var last *RetryEntry
	retryFrames(w.retries, func(payload []byte, entries []RetryEntry) {
		first := &entries[0]
		var lastKey []byte
		flags := byte(0)
		if last != nil {
			lastKey = appendComposite(nil, last.Collection, last.Key)
			if compareRetry(last, first) == 0 {
				flags = flagContinues
			}
		}
		if first.spans() {
			flags |= flagSpans
		}
		s := w.appendFrame(typeRetry, payload)
		x.add(appendSeparator(nil, lastKey, appendComposite(nil, first.Collection, first.Key)), int(s.len)-frameHead, len(entries), flags)
		last = &entries[len(entries)-1]
	})
	w.meta.retryOff, w.meta.retryLen, w.meta.retryEntries = int64(start), int64(len(w.body)-start), int64(len(w.retries))
	return x.finish()
}
