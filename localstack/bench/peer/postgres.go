package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// postgres is a server of our own with one jsonb table.
type postgres struct {
	process *exec.Cmd
	pool    *pgxpool.Pool
	version string
}

func startPostgres(ctx context.Context, base string) (*postgres, error) {
	data := filepath.Join(base, "postgres-data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	as, err := unprivileged(data)
	if err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	init := program("initdb", "-D", data, "-A", "trust", "-U", "peer", "--locale=C", "-E", "UTF8")
	init.SysProcAttr = as
	if out, err := init.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	p := &postgres{process: program("postgres", "-D", data, "-p", port, "-k", data, "-c", "listen_addresses=127.0.0.1", "-c", "logging_collector=off", "-c", "log_min_messages=fatal",
		"-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB")}
	p.process.SysProcAttr = as
	p.process.Stderr = os.Stderr
	if err := p.process.Start(); err != nil {
		return nil, err
	}
	if err := p.open(ctx, fmt.Sprintf("postgres://peer@127.0.0.1:%s/postgres?pool_max_conns=16", port)); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *postgres) open(ctx context.Context, url string) (err error) {
	if p.pool, err = pgxpool.New(ctx, url); err != nil {
		return err
	}
	for range 100 {
		if err = p.pool.QueryRow(ctx, "SELECT version()").Scan(&p.version); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		var on string
		if err := p.pool.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&on); err != nil || on != "on" {
			return fmt.Errorf("%s is %q, it must be on for a fair comparison: %w", name, on, err)
		}
	}
	_, err = p.pool.Exec(ctx, "CREATE TABLE documents (id bigint PRIMARY KEY, doc jsonb NOT NULL)")
	return err
}

func (p *postgres) insert(ctx context.Context, _ int, first int64) error {
	list := documents(first)
	ids, texts := make([]int64, len(list)), make([]string, len(list))
	for i, d := range list {
		text, err := json.Marshal(d)
		if err != nil {
			return err
		}
		ids[i], texts[i] = d.ID, string(text)
	}
	_, err := p.pool.Exec(ctx, "INSERT INTO documents SELECT * FROM unnest($1::bigint[], $2::text[]::jsonb[])", ids, texts)
	return err
}

func (p *postgres) lookup(ctx context.Context, _ int, key int64) error {
	var doc []byte
	return p.pool.QueryRow(ctx, "SELECT doc FROM documents WHERE id = $1", key).Scan(&doc)
}

func (p *postgres) close() {
	if p.pool != nil {
		p.pool.Close()
	}
	_ = p.process.Process.Signal(syscall.SIGINT) // at once: its clients are gone
	_ = p.process.Wait()
}

// program finds a server program of PostgreSQL, also where Debian hides them.
func program(name string, args ...string) *exec.Cmd {
	if path, err := exec.LookPath(name); err == nil {
		return exec.Command(path, args...)
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return exec.Command(name, args...) // its error says that it is not there
	}
	slices.Sort(found)
	return exec.Command(found[len(found)-1], args...)
}

// unprivileged is how to start the server when we are root, which it refuses to be; it gives
// data to that user.
func unprivileged(data string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, errors.New("we are root, and there is no user postgres to start it as")
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(data, uid, gid); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}
