package dirbucket

// Named makes b stage every file under a name, as on systems without O_TMPFILE.
func (b *Bucket) Named() *Bucket {
	b.nameless = false
	return b
}
