package rpc

import (
	"context"
	"errors"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Unreachable: the owner could not be asked, and nothing was done: it is not known in this
// process any more, or refused the connection. For calls that may as well be made twice
// (all but Write and Move) it also says that the connection broke before the answer. The
// shard may have moved to another holder: refresh the root, then ask the one that it names.
// It matches errkind.Throttled too, for those who only wait and try again.
var Unreachable error = unreachable{}

type unreachable struct{}

func (unreachable) Error() string { return "unreachable" }
func (unreachable) Unwrap() error { return errkind.Throttled }

// kinds are the error kinds by their name on the wire. An error that matches several is sent
// as the first of them: what leaves most open comes first, and Unreachable and Overloaded before
// Throttled, which they always match.
var kinds = []struct {
	name string
	kind error
}{
	{"unknownOutcome", errkind.UnknownOutcome},
	{"corrupt", errkind.Corrupt},
	{"fenced", errkind.Fenced},
	{"staleVersion", errkind.StaleVersion},
	{"snapshotUnavailable", errkind.SnapshotUnavailable},
	{"unreachable", Unreachable},
	{"overloaded", admission.Overloaded},
	{"conflict", errkind.Conflict},
	{"throttled", errkind.Throttled},
	{"notFound", errkind.NotFound},
	{"invalid", errkind.Invalid},
}

// AppendError appends the reply of a call that failed: {ok: 0, kind, errmsg, code, codeName,
// errorLabels, info}. The kind is there when the error has one, code and what follows when
// a *mongoerr.Error is in its chain. An error with neither is an InternalError to the peer,
// except for a context that ended, which is MaxTimeMSExpired.
func AppendError(dst []byte, err error) []byte {
	e := encoder{dst}
	at := e.start()
	e.b = bsoncore.AppendDoubleElement(e.b, "ok", 0)
	kind := kindName(err)
	e.str("kind", kind)
	var m *mongoerr.Error
	switch {
	case errors.As(err, &m):
		appendMongo(&e, m)
	case kind != "":
		e.str("errmsg", err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		appendMongo(&e, mongoerr.New(mongoerr.MaxTimeMSExpired, "%v", err))
	default:
		appendMongo(&e, mongoerr.New(mongoerr.InternalError, "%v", err))
	}
	e.end(at)
	return e.b
}

// appendMongo appends the fields of err to an open document.
func appendMongo(e *encoder, err *mongoerr.Error) {
	e.str("errmsg", err.Message)
	e.int("code", int64(err.Code))
	e.str("codeName", err.Code.String())
	if len(err.Labels) > 0 {
		at := e.array("errorLabels")
		for i, l := range err.Labels {
			e.index(bsoncore.TypeString, i)
			e.b = bsoncore.AppendString(e.b, l)
		}
		e.end(at)
	}
	e.raw("info", err.Info)
}

// ok starts the reply of a call that succeeded.
func (e *encoder) ok() mark {
	at := e.start()
	e.b = bsoncore.AppendDoubleElement(e.b, "ok", 1)
	return at
}

// ParseError looks at a reply. failed is the error that AppendError wrote, nil for a reply
// that begins with ok: 1: it matches the kind, and wraps a *mongoerr.Error when the owner's
// did. bad is Invalid for what is no reply at all; nothing is known then.
func ParseError(reply []byte) (failed, bad error) {
	f := read(reply)
	if !f.next() {
		f.fail("an empty reply")
		return nil, f.err
	}
	ok, isDouble := f.v.DoubleOK()
	if !isDouble || string(f.name) != "ok" || ok != 0 && ok != 1 {
		f.fail("a reply begins with ok: 0 or ok: 1, this one with %.40q", f.name)
		return nil, f.err
	}
	if ok == 1 {
		return nil, nil
	}
	var p parsedError
	if err := p.parse(f); err != nil {
		return nil, err
	}
	if p.kind == nil && !p.hasCode {
		f.fail("an error without kind and code: %.80q", p.m.Message)
		return nil, f.err
	}
	return p.error(), nil
}

// parsedError is an error document.
type parsedError struct {
	kind    error
	hasCode bool
	m       mongoerr.Error
}

func (p *parsedError) parse(f reader) error {
	for f.next() {
		switch string(f.name) {
		case "kind":
			p.kind = kindOf(f.str())
			f.want(p.kind != nil, "a kind of error that is known here")
		case "errmsg":
			p.m.Message = f.str()
		case "code":
			p.m.Code, p.hasCode = mongoerr.Code(f.int32()), true
		case "codeName":
			f.str() // made from the code again
		case "errorLabels":
			els := f.elements()
			for els.next() {
				p.m.Labels = append(p.m.Labels, els.str())
			}
			f.took(els.err)
		case "info":
			p.m.Info = f.raw()
		default:
			f.unknown()
		}
	}
	return f.err
}

// kindName is the wire name of the kind that err matches, or "".
func kindName(err error) string {
	for _, k := range kinds {
		if errors.Is(err, k.kind) {
			return k.name
		}
	}
	return ""
}

func kindOf(name string) error {
	for _, k := range kinds {
		if k.name == name {
			return k.kind
		}
	}
	return nil
}

func (p *parsedError) error() error {
	switch {
	case p.kind == nil:
		return &p.m
	case p.hasCode:
		return &ownerError{msg: p.m.Error(), chain: []error{p.kind, &p.m}}
	}
	return &ownerError{msg: p.m.Message, chain: []error{p.kind}}
}

// ownerError is an error that came over the wire: the owner's text, and what it matches.
type ownerError struct {
	msg   string
	chain []error
}

func (e *ownerError) Error() string   { return e.msg }
func (e *ownerError) Unwrap() []error { return e.chain }
