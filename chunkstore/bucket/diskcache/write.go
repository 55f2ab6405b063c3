package diskcache

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
)

const (
	// queueBytes and queueLen bound what waits to be written.
	queueBytes = 32 << 20
	queueLen   = 1024
	// entryShare bounds one file: a larger one than this part of the budget is not kept.
	entryShare = 8
	// pauseAfter is how long nothing is written after a write that failed.
	pauseAfter = time.Minute
)

// writer writes files in the background, so that no Get waits for it.
type writer struct {
	jobs   chan job
	bytes  atomic.Int64 // waiting
	done   sync.WaitGroup
	paused atomic.Int64 // until then nothing is written, on the host's monotonic clock
}

// job is a file to be written.
type job struct {
	e   *extent
	as  int64         // when it was asked for
	obj bucket.Object // a copy
	// reached, unless nil, is closed instead: everything before it has been written.
	reached chan struct{}
}

func (w *writer) start(c *Cached) {
	w.jobs = make(chan job, queueLen)
	w.done.Go(func() {
		for j := range w.jobs {
			if j.reached != nil {
				close(j.reached)
				continue
			}
			c.write(j)
			w.bytes.Add(-int64(len(j.obj.Body)))
		}
	})
}

func (w *writer) stop() {
	close(w.jobs)
	w.done.Wait()
}

// offer keeps an answer of the store, if it is all that was asked for, has a place, and is
// not there yet.
func (c *Cached) offer(a address, as, off, length int64, obj bucket.Object) {
	n := int64(len(obj.Body))
	expect := obj.Size - off
	if length > 0 {
		expect = min(expect, length)
	}
	if n == 0 || n != expect || obj.Tag == "" || len(obj.Tag) > tagBytesMax || len(c.store) >= 1<<16 {
		return
	}
	if n > c.index.budget/entryShare || int64(c.host.Mono()) < c.keep.paused.Load() || c.index.has(a, off, n) {
		c.count.skipped.Add(1)
		return
	}
	if c.keep.bytes.Add(n) > queueBytes {
		c.keep.bytes.Add(-n)
		c.count.skipped.Add(1)
		return
	}
	e := &extent{at: a, off: off, length: n, whole: n == obj.Size}
	obj.Body = bytes.Clone(obj.Body)
	select {
	case c.keep.jobs <- job{e: e, as: as, obj: obj}:
	default:
		c.keep.bytes.Add(-n)
		c.count.skipped.Add(1)
	}
}

// Sync waits until everything that was read so far is written, or given up.
func (c *Cached) Sync() {
	reached := make(chan struct{})
	c.keep.jobs <- job{reached: reached}
	<-reached
}

// write writes a file under a temporary name, and gives it its own.
func (c *Cached) write(j job) {
	if int64(c.host.Mono()) < c.keep.paused.Load() || c.index.has(j.e.at, j.e.off, j.e.length) {
		c.count.skipped.Add(1)
		return
	}
	header := names{c.store, j.obj.Key}.encodeHeader(j.e.off, &j.obj)
	if err := c.writeFile(j.e, header, j.obj.Body); err != nil {
		c.count.writeErrors.Add(1)
		c.keep.paused.Store(int64(c.host.Mono() + pauseAfter))
		c.warn("disk cache cannot be written: going on without for a minute", err)
		return
	}
	c.count.written.Add(1)
	c.removeFiles(c.index.add(j.e, int64(len(header)+len(j.obj.Body)), j.as))
}

func (c *Cached) writeFile(e *extent, header, body []byte) error {
	temp := c.tempPath(e)
	f, err := c.fs.Create(temp)
	if errors.Is(err, fs.ErrNotExist) { // the first file there, or someone deleted the directory
		if err := c.fs.MkdirAll(filepath.Dir(temp)); err != nil {
			return err
		}
		f, err = c.fs.Create(temp)
	}
	if err != nil {
		return err
	}
	if _, err = f.Write(header); err == nil {
		_, err = f.Write(body)
	}
	// Not synced: what a power cut leaves of the file is found by its checksums.
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = c.fs.Rename(temp, c.path(e))
	}
	if err != nil {
		_ = c.fs.Remove(temp)
	}
	return err
}
