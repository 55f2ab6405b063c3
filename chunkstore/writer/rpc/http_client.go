package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// HTTPOptions of NewHTTPDialer; zero fields mean the default beside them.
type HTTPOptions struct {
	ConnectWait  time.Duration // 2 s: for a TCP connection
	CallWait     time.Duration // 60 s: for a call whose header has no deadline
	ConnsPerPeer int           // 128: connections to one address; more calls wait for one
}

// grace is how much longer than its deadline a call is waited for, so that the owner's own
// answer to the deadline has time to come.
const grace = 500 * time.Millisecond

// HTTPDialer dials owners at their addresses. Its connections are shared by all of them.
type HTTPDialer struct {
	client *http.Client
	secret string
	host   host.Host
	o      HTTPOptions
}

var (
	_ Dialer     = (*HTTPDialer)(nil)
	_ PeerDialer = (*HTTPDialer)(nil)
)

// NewHTTPDialer makes a Dialer of the HTTP transport; peers are shown the secret.
func NewHTTPDialer(secret string, h host.Host, o *HTTPOptions) *HTTPDialer {
	d := &HTTPDialer{secret: secret, host: h, o: HTTPOptions{ConnectWait: 2 * time.Second, CallWait: time.Minute, ConnsPerPeer: 128}}
	if o != nil {
		if o.ConnectWait > 0 {
			d.o.ConnectWait = o.ConnectWait
		}
		if o.CallWait > 0 {
			d.o.CallWait = o.CallWait
		}
		if o.ConnsPerPeer > 0 {
			d.o.ConnsPerPeer = o.ConnsPerPeer
		}
	}
	d.client = &http.Client{
		Transport: &http.Transport{
			// No proxy: peers are in one network, and the secret goes to nobody else.
			DialContext:         (&net.Dialer{Timeout: d.o.ConnectWait}).DialContext,
			MaxConnsPerHost:     d.o.ConnsPerPeer,
			MaxIdleConnsPerHost: d.o.ConnsPerPeer,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return d
}

// Dial implements Dialer. It opens no connection. Errors: Unreachable for an empty address,
// which names an owner inside its own process.
func (d *HTTPDialer) Dial(shard manifest.ShardID, holder, address string) (Owner, error) {
	if address == "" {
		return nil, fmt.Errorf("dial %s: its holder %q has no address: %w", shard, holder, Unreachable)
	}
	return &httpOwner{d: d, address: address}, nil
}

// DialPeer implements PeerDialer. It opens no connection.
func (d *HTTPDialer) DialPeer(address string) (Peer, error) {
	if address == "" {
		return nil, fmt.Errorf("dial a peer: it has no address: %w", Unreachable)
	}
	return &httpOwner{d: d, address: address}, nil
}

// Close closes the connections that are idle.
func (d *HTTPDialer) Close() { d.client.CloseIdleConnections() }

// httpOwner is an owner at an address.
type httpOwner struct {
	d       *HTTPDialer
	address string
}

func (o *httpOwner) Read(ctx context.Context, r *ReadRequest) (*ReadReply, error) {
	return call(ctx, o, "read", r, &ReadReply{})
}

func (o *httpOwner) Cursor(ctx context.Context, r *CursorRequest) (*ReadReply, error) {
	return call(ctx, o, "cursor", r, &ReadReply{})
}

func (o *httpOwner) Write(ctx context.Context, r *WriteRequest) (*WriteReply, error) {
	return call(ctx, o, "write", r, &WriteReply{})
}

func (o *httpOwner) Promise(ctx context.Context, r *PromiseRequest) (*PromiseReply, error) {
	return call(ctx, o, "promise", r, &PromiseReply{})
}

func (o *httpOwner) Prepare(ctx context.Context, r *PrepareRequest) (*PrepareReply, error) {
	return call(ctx, o, "prepare", r, &PrepareReply{})
}

func (o *httpOwner) Decide(ctx context.Context, r *DecideRequest) (*DecideReply, error) {
	return call(ctx, o, "decide", r, &DecideReply{})
}

func (o *httpOwner) Move(ctx context.Context, r *MoveRequest) (*MoveReply, error) {
	return call(ctx, o, "move", r, &MoveReply{})
}

func (o *httpOwner) Loads(ctx context.Context, r *LoadsRequest) (*LoadsReply, error) {
	return call(ctx, o, "loads", r, &LoadsReply{})
}

func (o *httpOwner) Flush(ctx context.Context, r *FlushRequest) (*FlushReply, error) {
	return call(ctx, o, "flush", r, &FlushReply{})
}

// Ping implements Peer.
func (o *httpOwner) Ping(ctx context.Context, r *PingRequest) (*PingReply, error) {
	return call(ctx, o, "ping", r, &PingReply{})
}

// Claim implements Peer.
func (o *httpOwner) Claim(ctx context.Context, r *ClaimRequest) (*ClaimReply, error) {
	return call(ctx, o, "claim", r, &ClaimReply{})
}

// changes reports whether a call that was sent and not answered leaves something open. A
// flush may be done twice; a cursor that moved on without us answers CursorNotFound; what was
// prepared ends by itself.
func changes(verb string) bool { return verb == "write" || verb == "move" }

// call sends one request. Errors: those of the owner; Unreachable when nothing was sent, or
// the call changes nothing; UnknownOutcome; Stranger; Invalid when the peer refused the
// message.
func call[R message](ctx context.Context, o *httpOwner, verb string, q interface {
	message
	header() *Header
}, reply R) (none R, err error) {
	body := q.Append(nil)
	if len(body) > MessageBytesMax {
		return none, fmt.Errorf("%s: a message of %d bytes, at most %d are allowed: %w", verb, len(body), MessageBytesMax, errkind.Invalid)
	}
	deadline := q.header().Deadline
	wait := o.d.o.CallWait
	if deadline > 0 {
		wait = deadline + grace
	}
	ctx, cancel := o.d.host.WithTimeout(ctx, wait)
	defer cancel()
	doc, err := o.post(ctx, verb, body, deadline)
	if err != nil {
		return none, fmt.Errorf("%s at %s: %w", verb, o.address, err)
	}
	failed, bad := ParseError(doc)
	if failed != nil {
		return none, failed
	}
	if bad == nil {
		bad = reply.Parse(doc)
	}
	if bad != nil {
		return none, fmt.Errorf("%s at %s: %w", verb, o.address, lost(verb, bad))
	}
	return reply, nil
}

// post sends a body and returns that of the answer.
func (o *httpOwner) post(ctx context.Context, verb string, body []byte, deadline time.Duration) ([]byte, error) {
	// Once the request has a connection, bytes of it may have reached the peer. The
	// transport sends again by itself only what did not leave at all.
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+o.address+PathPrefix+verb, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", Unreachable, err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Authorization", "Bearer "+o.d.secret)
	if deadline > 0 {
		req.Header.Set(deadlineHeader, strconv.FormatInt(deadline.Milliseconds()+1, 10))
	}
	resp, err := o.d.client.Do(req)
	if err != nil && !sent.Load() {
		return nil, fmt.Errorf("%w: %w", Unreachable, err)
	}
	if err != nil {
		return nil, lost(verb, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, refused(verb, resp)
	}
	doc, err := readMessage(resp.Body)
	if err != nil {
		return nil, lost(verb, err)
	}
	return doc, nil
}

// refused is the error of an answer that is not the owner's. With a 4xx nothing was done.
func refused(verb string, resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	err := fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	if resp.StatusCode == http.StatusUnauthorized {
		return fmt.Errorf("%w: %w", Stranger, err)
	}
	if resp.StatusCode/100 == 4 {
		return fmt.Errorf("%w: %w", errkind.Invalid, err)
	}
	return lost(verb, err)
}

// lost is the outcome of a call that may have been done and whose answer did not come, or
// cannot be read: which is not the caller's fault, so that Invalid leaves the chain.
func lost(verb string, cause error) error {
	if errors.Is(cause, errkind.Invalid) {
		cause = errors.New(cause.Error())
	}
	if changes(verb) {
		return fmt.Errorf("%w: %w", errkind.UnknownOutcome, cause)
	}
	return fmt.Errorf("%w: %w", Unreachable, cause)
}
