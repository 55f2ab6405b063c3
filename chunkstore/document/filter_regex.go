package document

import (
	"bytes"
	"regexp"
	"regexp/syntax"
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// maxPatternBytes bounds what is compiled at all.
	maxPatternBytes = 4 << 10
	// maxPatternSteps bounds the compiled pattern: a search takes time in proportion to it
	// and to the string, and (.{1,900}){1,1}z needs seconds for 100 KB.
	maxPatternSteps = 1000
	// maxSearch bounds their product: about two seconds.
	maxSearch = 1 << 29
)

func badPattern(format string, args ...any) error {
	return mongoerr.New(mongoerr.Location51091, "Regular expression is invalid: "+format, args...)
}

// parseRegex parses path: /pattern/options.
func parseRegex(path string, v bson.RawValue) (Node, error) {
	pattern, options := regexOf(v)
	s, err := compilePattern(string(pattern), string(options))
	if err != nil {
		return Node{}, err
	}
	s.itself = v
	return Node{Op: Regex, Path: path, Value: v, tester: s}, nil
}

// parseRegexOperator parses $regex, a string or a regular expression, with its $options.
func parseRegexOperator(path string, v, opts bson.RawValue) (Node, error) {
	var pattern, options []byte
	switch {
	case isText(v):
		pattern = textOf(v)
	case v.Type == bson.TypeRegex:
		pattern, options = regexOf(v)
	default:
		return Node{}, badValue("$regex has to be a string")
	}
	if opts.Type != 0 {
		switch {
		case !isText(opts):
			return Node{}, badValue("$options has to be a string")
		case len(options) > 0:
			return Node{}, mongoerr.New(51075, "options set in both $regex and $options")
		}
		options = textOf(opts)
	}
	if bytes.IndexByte(pattern, 0) >= 0 || bytes.IndexByte(options, 0) >= 0 {
		return Node{}, badPattern("it holds a null byte")
	}
	value := append(append([]byte(nil), pattern...), 0)
	value = append(append(value, options...), 0)
	return parseRegex(path, bson.RawValue{Type: bson.TypeRegex, Value: value})
}

// compilePattern compiles a pattern in the dialect of Go's regexp, which searches in linear
// time: it has no look-around and no back-references.
func compilePattern(pattern, options string) (*search, error) {
	if len(pattern) > maxPatternBytes {
		return nil, badPattern("it is longer than %d bytes", maxPatternBytes)
	}
	flags := ""
	for _, o := range options {
		switch o {
		case 'i', 'm', 's':
			flags += string(o)
		case 'x':
			pattern = withoutSpace(pattern)
		case 'u': // text is UTF-8 anyway
		default:
			return nil, mongoerr.New(51108, "invalid flag in regex options: %c", o)
		}
	}
	if flags != "" {
		pattern = "(?" + flags + ")" + pattern
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, badPattern("%s (look-around and back-references are not supported)", err)
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, badPattern("%s", err)
	}
	if len(prog.Inst) > maxPatternSteps {
		return nil, badPattern("it is too complex: its repetitions expand to %d steps, %d are allowed",
			len(prog.Inst), maxPatternSteps)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, badPattern("%s", err)
	}
	return &search{re: re, longest: maxSearch / len(prog.Inst)}, nil
}

// withoutSpace is what the option x asks for: white space and comments do not count, but
// inside brackets and after a backslash.
func withoutSpace(pattern string) string {
	var out strings.Builder
	brackets := false
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		switch {
		case c == '\\' && i+1 < len(pattern):
			out.WriteByte(c)
			i++
			c = pattern[i]
		case brackets:
			brackets = c != ']'
		case c == '[':
			brackets = true
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			continue
		case c == '#':
			for i+1 < len(pattern) && pattern[i+1] != '\n' {
				i++
			}
			continue
		}
		out.WriteByte(c)
	}
	return out.String()
}

// search tests whether a pattern is found in a string; a stored regular expression matches
// if it is the same.
type search struct {
	re      *regexp.Regexp
	itself  bson.RawValue
	longest int // more bytes than this are not searched
}

// tooLong tests for strings that are not searched.
type tooLong struct{ *search }

func (t tooLong) test(v bson.RawValue) bool { return isText(v) && len(v.Value) > t.longest }

func (s *search) test(v bson.RawValue) bool {
	if isText(v) {
		return s.re.Match(textOf(v))
	}
	return v.Type == bson.TypeRegex && bytes.Equal(v.Value, s.itself.Value)
}
