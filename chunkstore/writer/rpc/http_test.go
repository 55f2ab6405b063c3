package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// owner records the last request and answers what it is told to.
type owner struct {
	calls atomic.Int64
	mu    sync.Mutex // for those that come at once
	got   any
	ctx   context.Context
	reply any
	err   error
	wait  chan struct{} // not nil: told of a call, which waits until its context ends
}

func answer[R any](o *owner, ctx context.Context, q any) (*R, error) {
	o.calls.Add(1)
	o.mu.Lock()
	o.got, o.ctx = q, ctx
	o.mu.Unlock()
	if o.wait != nil {
		o.wait <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if o.err != nil {
		return nil, o.err
	}
	if r, ok := o.reply.(*R); ok {
		return r, nil
	}
	return new(R), nil
}

func (o *owner) Read(ctx context.Context, r *rpc.ReadRequest) (*rpc.ReadReply, error) {
	return answer[rpc.ReadReply](o, ctx, r)
}

func (o *owner) Cursor(ctx context.Context, r *rpc.CursorRequest) (*rpc.ReadReply, error) {
	return answer[rpc.ReadReply](o, ctx, r)
}

func (o *owner) Write(ctx context.Context, r *rpc.WriteRequest) (*rpc.WriteReply, error) {
	return answer[rpc.WriteReply](o, ctx, r)
}

func (o *owner) Promise(ctx context.Context, r *rpc.PromiseRequest) (*rpc.PromiseReply, error) {
	return answer[rpc.PromiseReply](o, ctx, r)
}

func (o *owner) Prepare(ctx context.Context, r *rpc.PrepareRequest) (*rpc.PrepareReply, error) {
	return answer[rpc.PrepareReply](o, ctx, r)
}

func (o *owner) Decide(ctx context.Context, r *rpc.DecideRequest) (*rpc.DecideReply, error) {
	return answer[rpc.DecideReply](o, ctx, r)
}

func (o *owner) Move(ctx context.Context, r *rpc.MoveRequest) (*rpc.MoveReply, error) {
	return answer[rpc.MoveReply](o, ctx, r)
}

func (o *owner) Loads(ctx context.Context, r *rpc.LoadsRequest) (*rpc.LoadsReply, error) {
	return answer[rpc.LoadsReply](o, ctx, r)
}

func (o *owner) Flush(ctx context.Context, r *rpc.FlushRequest) (*rpc.FlushReply, error) {
	return answer[rpc.FlushReply](o, ctx, r)
}

// send calls the verb of a request.
func send(ctx context.Context, o rpc.Owner, q any) (reply any, err error) {
	switch q := q.(type) {
	case *rpc.ReadRequest:
		reply, err = o.Read(ctx, q)
	case *rpc.CursorRequest:
		reply, err = o.Cursor(ctx, q)
	case *rpc.WriteRequest:
		reply, err = o.Write(ctx, q)
	case *rpc.PromiseRequest:
		reply, err = o.Promise(ctx, q)
	case *rpc.PrepareRequest:
		reply, err = o.Prepare(ctx, q)
	case *rpc.DecideRequest:
		reply, err = o.Decide(ctx, q)
	case *rpc.MoveRequest:
		reply, err = o.Move(ctx, q)
	case *rpc.LoadsRequest:
		reply, err = o.Loads(ctx, q)
	case *rpc.FlushRequest:
		reply, err = o.Flush(ctx, q)
	}
	return reply, err
}

// pairs are the reply types by request type.
var pairs = map[string]string{
	"ReadRequest": "ReadReply", "CursorRequest": "ReadReply", "WriteRequest": "WriteReply",
	"PromiseRequest": "PromiseReply", "PrepareRequest": "PrepareReply", "DecideRequest": "DecideReply", "MoveRequest": "MoveReply", "FlushRequest": "FlushReply",
	"LoadsRequest": "LoadsReply",
}

// requests are the examples that can be sent.
func requests() map[string]message {
	out := map[string]message{}
	for name, m := range examples() {
		if pairs[name] != "" {
			out[name] = m
		}
	}
	return out
}

func valid([]byte) error { return nil }

func dial(t *testing.T, d *rpc.HTTPDialer, url string) rpc.Owner {
	t.Helper()
	t.Cleanup(d.Close)
	o, err := d.Dial("shard01", "holder", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// serve runs an owner behind HTTP.
func serve(t *testing.T, o rpc.Owner, validate func([]byte) error) (rpc.Owner, *httptest.Server) {
	t.Helper()
	s := httptest.NewServer(rpc.Handler(o, nil, "secret", host.System(), validate, rpc.Limits{}))
	t.Cleanup(s.Close)
	return dial(t, rpc.NewHTTPDialer("secret", host.System(), nil), s.URL), s
}

// Over HTTP an owner sees the request that was sent, and the caller its reply.
func TestHTTPCarriesRequestsAndReplies(t *testing.T) {
	o := &owner{}
	remote, _ := serve(t, o, valid)
	for q, r := range pairs {
		rapid.Check(t, func(t *rapid.T) {
			sent, reply := generated[q](t), generated[r](t)
			o.reply = reply
			sent = withDeadline(sent, 0) // a drawn one may be a nanosecond
			got, err := send(context.Background(), remote, sent)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(sent, o.got, equal); d != "" {
				t.Fatalf("request (-sent +got):\n%s", d)
			}
			if d := cmp.Diff(reply, got, equal); d != "" {
				t.Fatalf("reply (-sent +got):\n%s", d)
			}
		})
	}
}

func withDeadline(m message, d time.Duration) message {
	switch q := m.(type) {
	case *rpc.ReadRequest:
		q.Deadline = d
	case *rpc.CursorRequest:
		q.Deadline = d
	case *rpc.WriteRequest:
		q.Deadline = d
	case *rpc.PromiseRequest:
		q.Deadline = d
	case *rpc.PrepareRequest:
		q.Deadline = d
	case *rpc.DecideRequest:
		q.Deadline = d
	case *rpc.MoveRequest:
		q.Deadline = d
	case *rpc.LoadsRequest:
		q.Deadline = d
	case *rpc.FlushRequest:
		q.Deadline = d
	}
	return m
}

func TestHTTPCarriesErrors(t *testing.T) {
	o := &owner{}
	remote, _ := serve(t, o, valid)
	for name, q := range requests() {
		o.err = fmt.Errorf("chunk 3: %w", errkind.StaleVersion)
		if _, err := send(t.Context(), remote, q); !errors.Is(err, errkind.StaleVersion) || !strings.Contains(err.Error(), "chunk 3") {
			t.Errorf("%s: %v", name, err)
		}
		o.err = mongoerr.New(mongoerr.BadValue, "no")
		var m *mongoerr.Error
		if _, err := send(t.Context(), remote, q); !errors.As(err, &m) || m.Code != mongoerr.BadValue || errors.Is(err, errkind.UnknownOutcome) {
			t.Errorf("%s: %v", name, err)
		}
		o.err = errors.New("a bug")
		_, err := send(t.Context(), remote, q)
		if changes := name == "WriteRequest" || name == "MoveRequest"; errors.Is(err, errkind.UnknownOutcome) != changes {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The deadline of the header ends the owner's context; its answer still comes.
func TestHTTPEndsCallsAtTheirDeadline(t *testing.T) {
	o := &owner{wait: make(chan struct{}, 1)}
	remote, _ := serve(t, o, valid)
	for name, q := range requests() {
		start := time.Now()
		_, err := send(t.Context(), remote, withDeadline(q, 20*time.Millisecond))
		var m *mongoerr.Error
		if name == "WriteRequest" || name == "MoveRequest" {
			if !errors.Is(err, errkind.UnknownOutcome) {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.As(err, &m) || m.Code != mongoerr.MaxTimeMSExpired {
			t.Errorf("%s: %v", name, err)
		}
		<-o.wait
		if took := time.Since(start); took < 20*time.Millisecond || took > 5*time.Second {
			t.Errorf("%s took %s", name, took)
		}
	}
}

// A caller that goes away ends the context of its call at the owner.
func TestHTTPCallsEndWithTheirCaller(t *testing.T) {
	o := &owner{wait: make(chan struct{})}
	remote, s := serve(t, o, valid)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { <-o.wait; cancel() })
	_, err := remote.Write(ctx, &rpc.WriteRequest{})
	wg.Wait()
	if !errors.Is(err, errkind.UnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.Close() // waits for the handler, which waits for its context
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := remote.Write(ctx, &rpc.WriteRequest{}); !errors.Is(err, rpc.Unreachable) || errors.Is(err, errkind.UnknownOutcome) {
		t.Error("a context that ended before:", err)
	}
}

// Nothing that cannot show the secret reaches the owner, on any route.
func TestHTTPRefusesStrangers(t *testing.T) {
	o := &owner{}
	_, s := serve(t, o, valid)
	for _, secret := range []string{"", "wrong", "secre", "secret "} {
		d := rpc.NewHTTPDialer(secret, host.System(), nil)
		for name, q := range requests() {
			_, err := send(t.Context(), dial(t, d, s.URL), q)
			if secret == "secret " { // HTTP trims it
				continue
			}
			if !errors.Is(err, rpc.Stranger) || !errors.Is(err, errkind.Throttled) || errors.Is(err, rpc.Unreachable) || !strings.Contains(err.Error(), "401") || errors.Is(err, errkind.UnknownOutcome) {
				t.Errorf("%s with %q: %v", name, secret, err)
			}
		}
	}
	for _, auth := range []string{"", "secret", "Basic secret", "bearer secret", "Bearer"} {
		for _, path := range []string{"/", "/rpc/v1/", "/rpc/v1/read", "/rpc/v1/none", "/metrics"} {
			req, err := http.NewRequest(http.MethodPost, s.URL+path, strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			if auth != "" {
				req.Header.Set("Authorization", auth)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with %q: %s", path, auth, resp.Status)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if n := o.calls.Load(); n > int64(len(requests())) {
		t.Errorf("%d calls reached the owner", n)
	}
	open := httptest.NewServer(rpc.Handler(o, nil, "", host.System(), valid, rpc.Limits{}))
	defer open.Close()
	if _, err := dial(t, rpc.NewHTTPDialer("any", host.System(), nil), open.URL).Flush(t.Context(), &rpc.FlushRequest{}); err != nil {
		t.Error("without a secret everybody is served:", err)
	}
}

// raw posts a body as a peer that knows the secret.
func raw(t *testing.T, url string, body io.Reader, length int64) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url+"/rpc/v1/write", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = length
	req.Header.Set("Authorization", "Bearer secret")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// What is not one valid document of an allowed length is refused before the owner, and
// before memory is taken for it.
func TestHTTPRefusesBadBodies(t *testing.T) {
	o := &owner{}
	_, s := serve(t, o, func(doc []byte) error {
		if bytes.Contains(doc, []byte("evil")) {
			return errors.New("duplicate field name")
		}
		return nil
	})
	say := func(n uint32, rest int) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, n), make([]byte, rest)...)
	}
	good := (&rpc.WriteRequest{}).Append(nil)
	for name, c := range map[string]struct {
		body   []byte
		length int64
		status int
		says   string
	}{
		"good":             {good, int64(len(good)), 200, ""},
		"no length":        {good, -1, 411, "Content-Length"},
		"too long":         {nil, rpc.MessageBytesMax + 1, 413, "48000000"},
		"empty":            {nil, 0, 400, "EOF"},
		"three bytes":      {[]byte("abc"), 3, 400, "EOF"},
		"says 4":           {say(4, 10), 14, 400, "says it has 4"},
		"says negative":    {say(1<<31+5, 10), 14, 400, "says it has -"},
		"says 2 GB":        {say(1<<31-1, 10), 14, 400, "says it has 2147483647"},
		"says 48 MB":       {say(rpc.MessageBytesMax, 10), 14, 400, "of 48000000 bytes"},
		"followed":         {append(bytes.Clone(good), 0), int64(len(good)) + 1, 400, "follows"},
		"not valid":        {doc(bson.E{Key: "evil", Value: 1}), int64(len(doc(bson.E{Key: "evil", Value: 1}))), 400, "duplicate field name"},
		"not a request":    {doc(bson.E{Key: "x", Value: 1}), int64(len(doc(bson.E{Key: "x", Value: 1}))), 400, "not known"},
		"bytes, no fields": {say(14, 10), 14, 400, "message"},
	} {
		before := o.calls.Load()
		status, text := raw(t, s.URL, bytes.NewReader(c.body), c.length)
		if c.length > int64(len(c.body)) { // the client gives up on its own body: any end will do but a call
			status, text = c.status, c.says
		}
		if status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s", name, status, text)
		}
		if called := o.calls.Load() > before; called != (c.status == 200) {
			t.Errorf("%s: the owner was called: %v", name, called)
		}
	}
}

// A message of nearly the largest size passes, a larger one does not leave.
func TestHTTPCarriesLargeMessages(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 96 MB")
	}
	large := &rpc.ReadReply{Docs: []bson.Raw{doc(bson.E{Key: "v", Value: strings.Repeat("x", 47_999_000)})}}
	o := &owner{reply: large}
	remote, _ := serve(t, o, valid)
	got, err := remote.Read(t.Context(), &rpc.ReadRequest{})
	if err != nil || !bytes.Equal(got.Docs[0], large.Docs[0]) {
		t.Error(err)
	}
	huge := &rpc.WriteRequest{Targets: []rpc.Target{{}}, Ops: []rpc.WriteOp{{Doc: large.Docs[0]}, {Doc: large.Docs[0]}}}
	if _, err := remote.Write(t.Context(), huge); !errors.Is(err, errkind.Invalid) || o.calls.Load() != 1 {
		t.Error(err)
	}
}

// A peer that holds too much refuses more, unread, and takes it again later.
func TestHTTPBoundsWhatIsUnderWay(t *testing.T) {
	if testing.Short() {
		t.Skip("holds 240 MB")
	}
	o := &owner{}
	release := make(chan struct{})
	_, s := serve(t, o, func([]byte) error { <-release; return nil })
	body := (&rpc.WriteRequest{Targets: []rpc.Target{{}}, Ops: []rpc.WriteOp{{Doc: doc(bson.E{Key: "v", Value: strings.Repeat("x", 40<<20)})}}}).Append(nil)
	results := make(chan string, 8)
	for range cap(results) {
		go func() {
			_, text := raw(t, s.URL, bytes.NewReader(body), int64(len(body)))
			results <- text
		}()
	}
	refused := 0
	for range 2 { // 6 x 40 MB are within the 256 MB, 8 are not
		select {
		case text := <-results:
			failed, bad := rpc.ParseError([]byte(text))
			if !errors.Is(failed, errkind.Throttled) && !strings.Contains(text, "reset") && !strings.Contains(text, "broken pipe") {
				t.Errorf("%v %v %.80q", failed, bad, text)
			}
			refused++
		case <-time.After(20 * time.Second):
			t.Fatal("nobody was refused")
		}
	}
	close(release)
	for range cap(results) - refused {
		if text := <-results; !strings.HasPrefix(bson.Raw(text).String(), `{"ok": {"$numberDouble":"1.0"}`) {
			t.Errorf("%.80q", text)
		}
	}
	if status, _ := raw(t, s.URL, bytes.NewReader(body), int64(len(body))); status != 200 {
		t.Error("the places were not given back")
	}
}

// A connection that the peer closed while it was idle is replaced before anything is sent.
func TestHTTPConnectionsAreKept(t *testing.T) {
	o := &owner{}
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(rpc.Handler(o, nil, "secret", host.System(), valid, rpc.Limits{}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	remote := dial(t, rpc.NewHTTPDialer("secret", host.System(), nil), s.URL)
	for range 20 {
		if _, err := remote.Flush(t.Context(), &rpc.FlushRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections for 20 calls", n)
	}
}
