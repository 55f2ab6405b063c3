package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// printYAML prints what printJSON would, as YAML: the same fields in the same order. Scalars
// are written as JSON has them, which YAML reads as the same values.
func printYAML(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	out := &yamlText{d: d}
	if err := out.value("", true); err != nil {
		return err
	}
	_, err = io.WriteString(w, strings.TrimPrefix(out.b.String(), "\n"))
	return err
}

// yamlText turns a stream of JSON tokens into block style. It recurses as deep as the value
// nests, which is one of ours.
type yamlText struct {
	d *json.Decoder
	b strings.Builder
}

// value writes the next value: a scalar on the present line, anything else below it. inline
// says that its first field may stand where the line is (after "- ").
func (y *yamlText) value(indent string, inline bool) error {
	t, err := y.d.Token()
	if err != nil {
		return err
	}
	switch t := t.(type) {
	case json.Delim:
		return y.block(t, indent, inline)
	case string:
		y.b.WriteByte(' ')
		e := json.NewEncoder(&y.b) // ends the line
		e.SetEscapeHTML(false)
		return e.Encode(t)
	case nil:
		y.b.WriteString(" null\n")
	default:
		fmt.Fprintf(&y.b, " %v\n", t)
	}
	return nil
}

func (y *yamlText) block(open json.Delim, indent string, inline bool) error {
	if !y.d.More() {
		fmt.Fprintf(&y.b, " %s%s\n", open, map[json.Delim]string{'{': "}", '[': "]"}[open])
		_, err := y.d.Token()
		return err
	}
	if !inline {
		y.b.WriteByte('\n')
	}
	for first := true; y.d.More(); first = false {
		lead := indent
		if first && inline && indent != "" {
			lead = " "
		}
		if open == '[' {
			y.b.WriteString(lead + "-")
			if err := y.value(indent+"  ", true); err != nil {
				return err
			}
			continue
		}
		name, err := y.d.Token()
		if err != nil {
			return err
		}
		fmt.Fprintf(&y.b, "%s%s:", lead, name)
		if err := y.value(indent+"  ", false); err != nil {
			return err
		}
	}
	_, err := y.d.Token()
	return err
}
