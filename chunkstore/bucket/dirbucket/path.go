package dirbucket

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// pathOf maps a key to its file. Errors: Invalid for keys that CheckKey refuses, and for a
// component that is longer than a file name may be once its bytes are escaped.
func (b *Bucket) pathOf(key string) (string, error) {
	if err := bucket.CheckKey(key); err != nil {
		return "", err
	}
	parts := strings.Split(key, "/")
	for i, p := range parts {
		parts[i] = escape(p)
		if len(parts[i]) > bucket.ComponentBytesMax {
			return "", fmt.Errorf("key %.80q: a component is longer than %d bytes as a file name (bytes other than a-z 0-9 - _ . take three): %w",
				key, bucket.ComponentBytesMax, errkind.Invalid)
		}
	}
	return filepath.Join(b.path, filepath.Join(parts...)), nil
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.'
}

// escape is the file name of one component.
func escape(part string) string {
	clean := part[0] != '.'
	for i := 0; clean && i < len(part); i++ {
		clean = plain(part[i])
	}
	if clean {
		return part
	}
	var s strings.Builder
	for i := 0; i < len(part); i++ {
		if c := part[i]; plain(c) && (i > 0 || c != '.') {
			s.WriteByte(c)
		} else {
			fmt.Fprintf(&s, "%%%02X", c)
		}
	}
	return s.String()
}

// unescape is the inverse. ok is false for a name that escape never makes: such a file is
// not ours.
func unescape(name string) (part string, ok bool) {
	if name == "" || name[0] == '.' {
		return "", false
	}
	if strings.IndexByte(name, '%') < 0 {
		return name, escape(name) == name
	}
	raw := make([]byte, 0, len(name))
	for i := 0; i < len(name); i++ {
		if name[i] != '%' {
			raw = append(raw, name[i])
			continue
		}
		if i+2 >= len(name) {
			return "", false
		}
		var c byte
		if _, err := fmt.Sscanf(name[i+1:i+3], "%02X", &c); err != nil {
			return "", false
		}
		raw = append(raw, c)
		i += 2
	}
	return string(raw), escape(string(raw)) == name
}
