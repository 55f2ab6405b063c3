package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// health is what /livez and /readyz tell. Neither asks the store.
type health struct {
	ready atomic.Bool
	// since is how long ago the store answered; set before ready is.
	since func() time.Duration
}

// storeSilentMax is how long the store may be silent before the process is not ready.
const storeSilentMax = 10 * time.Second

// state is "ok", or why the process is not ready.
func (h *health) state() (why string, ready bool) {
	if !h.ready.Load() {
		return "not serving: starting, or draining", false
	}
	if silent := h.since(); silent > storeSilentMax {
		return fmt.Sprintf("the store has not answered for %v", silent.Round(time.Second)), false
	}
	return "ok", true
}

// serveAdmin listens for health, metrics and profiles; "" serves nothing. at is where it
// listens, and stop ends it.
func serveAdmin(addr string, h *health, m *metered, log *slog.Logger) (at string, stop func(), err error) {
	if addr == "" {
		return "", func() {}, nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		why, ready := h.state()
		if !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, why)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, fmt.Errorf("--admin %s: %w; another address: --admin 127.0.0.1:8082, or none: --admin ''", addr, err)
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(bound(l, connsMax)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("admin listener", "cause", err)
		}
	}()
	return l.Addr().String(), func() { _ = s.Close(); <-done }, nil
}
