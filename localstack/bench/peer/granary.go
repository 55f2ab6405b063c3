package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// granary is granary local on a directory.
type granary struct {
	process *exec.Cmd
	client  *mongo.Client
	coll    *mongo.Collection
}

func startGranary(ctx context.Context, base string) (*granary, error) {
	program := *binary
	if program == "" {
		program = filepath.Join(base, "granary")
		if out, err := exec.Command("go", "build", "-C", "../../..", "-o", program, "./cmd/granary").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	g := &granary{process: exec.Command(program, "local", "--store", "dir:"+filepath.Join(base, "granary-data"), "--mongo", addr, "--admin", "")}
	g.process.Stderr = os.Stderr
	if err := g.process.Start(); err != nil {
		return nil, err
	}
	g.client, err = mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/?serverSelectionTimeoutMS=20000"))
	if err == nil {
		err = g.client.Ping(ctx, nil)
	}
	if err != nil {
		g.close()
		return nil, err
	}
	g.coll = g.client.Database("peer").Collection("documents")
	return g, nil
}

func (g *granary) insert(ctx context.Context, _ int, first int64) error {
	_, err := g.coll.InsertMany(ctx, documents(first), options.InsertMany().SetOrdered(false))
	return err
}

func (g *granary) lookup(ctx context.Context, _ int, key int64) error {
	return g.coll.FindOne(ctx, bson.D{{Key: "_id", Value: key}}).Err()
}

func (g *granary) close() {
	if g.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = g.client.Disconnect(ctx)
	}
	stop(g.process)
}

// stop asks a process to end, and waits until it has.
func stop(p *exec.Cmd) {
	_ = p.Process.Signal(syscall.SIGTERM)
	_ = p.Wait()
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
