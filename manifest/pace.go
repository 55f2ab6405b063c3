package manifest

// settingCompaction is the cluster's setting of how much compactions may ask of the store.
const settingCompaction = "compaction"

// The least that compactions can be held to: with less, a job on one large chunk would take so
// long that others take it for dead.
const (
	CompactionBytesMin    = 1 << 20
	CompactionRequestsMin = 1
)

// CompactionPace is how many bytes and requests a second each process may spend on merging
// segments, by the setting compaction {bytesPerSecond, requestsPerSecond}; 0: nobody said.
func (s *State) CompactionPace() (bytes, requests int64) {
	if n, ok := asInt64(s.setting(settingCompaction, "bytesPerSecond")); ok && n > 0 {
		bytes = max(n, CompactionBytesMin)
	}
	if n, ok := asInt64(s.setting(settingCompaction, "requestsPerSecond")); ok && n > 0 {
		requests = max(n, CompactionRequestsMin)
	}
	return bytes, requests
}
