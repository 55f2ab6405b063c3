package main

import (
	"net"
	"sync"
)

// connsMax bounds the connections of a listener of HTTP: that for writers and routers, and
// admin. Who comes later waits until another has gone; those that say nothing go after the
// time for a header.
const connsMax = 2000

// bounded is a listener with at most so many connections at a time.
type bounded struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
}

func bound(l net.Listener, most int) *bounded {
	return &bounded{Listener: l, places: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept waits for a place, then for a connection.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.places <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &placed{Conn: c, b: b}, nil
}

func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

// placed is a connection that gives its place back when it is closed.
type placed struct {
	net.Conn
	b    *bounded
	once sync.Once
}

func (p *placed) Close() error {
	err := p.Conn.Close()
	p.once.Do(func() { <-p.b.places })
	return err
}
