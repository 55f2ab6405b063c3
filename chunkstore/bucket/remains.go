package bucket

import (
	"context"
	"fmt"
)

// remainsOf are the prefixes under which a cluster has objects that it needs.
var remainsOf = []string{"seg/", "wal/", "meta/history/", "meta/pin/", "meta/page/"}

// Remains looks whether a store without a root once held a cluster, and returns the key of an
// object that says so; "" when there is none. A store in which only the root is missing is no
// empty store: whoever made a cluster in it would bury what is there. Errors: those of List.
func Remains(ctx context.Context, b Bucket) (key string, err error) {
	for _, prefix := range remainsOf {
		page, _, err := b.List(ctx, prefix, "", 1)
		if err != nil {
			return "", fmt.Errorf("list %s: %w", prefix, err)
		}
		if len(page) > 0 {
			return page[0].Key, nil
		}
	}
	return "", nil
}
