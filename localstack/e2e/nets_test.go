package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// nets is a network of namespaces of this machine, one for each process of a cluster:
//
//	client (the test itself) --- hub --- router1, router2, writer1, ..., store
//
// Each has a link of its own to the hub, which forwards. A cut is a rule of the hub that
// swallows what goes from one to another, one way, without a word to either: packets that are
// lost, as on a broken network, not connections that are refused.
type nets struct {
	t    testing.TB
	hub  string
	at   map[string]string // address by name
	cuts map[[2]string]bool
}

// net213 is the network that the namespaces are in: 10.213.N.2 is the N-th of them.
const net213 = "10.213"

// newNets makes the namespaces. The test is skipped where that is not allowed.
func newNets(t testing.TB, names ...string) *nets {
	t.Helper()
	n := &nets{t: t, hub: n213(t, "hub"), at: map[string]string{}, cuts: map[[2]string]bool{}}
	if out, err := exec.Command("ip", "netns", "add", n.hub).CombinedOutput(); err != nil {
		sentence := fmt.Sprintf("network namespaces cannot be made here (root and iproute2 are needed): %v %s", err, out)
		if os.Getenv("GRANARY_REQUIRE") != "" && os.Getuid() == 0 {
			t.Fatal(sentence)
		}
		t.Skip(sentence)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", n.hub).Run() })
	n.ip("-n", n.hub, "link", "set", "lo", "up")
	n.ip("netns", "exec", n.hub, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	for i, name := range append([]string{"client"}, names...) {
		n.add(name, i)
	}
	return n
}

// n213 names a namespace of this test process.
func n213(t testing.TB, name string) string {
	t.Helper()
	return fmt.Sprintf("granary-%d-%s", os.Getpid(), name)
}

func (n *nets) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v %s", strings.Join(args, " "), err, out)
	}
}

// add links a namespace to the hub; that of the client is there.
func (n *nets) add(name string, i int) {
	n.t.Helper()
	far, near, subnet := fmt.Sprintf("gr%d", i), fmt.Sprintf("gr%dh", i), fmt.Sprintf("%s.%d", net213, i)
	n.at[name] = subnet + ".2"
	inside := func(args ...string) { n.ip(args...) }
	if name == "client" {
		far = fmt.Sprintf("gr%d", os.Getpid())
		n.ip("link", "add", far, "type", "veth", "peer", "name", near, "netns", n.hub)
	} else {
		space := n213(n.t, name)
		n.ip("netns", "add", space)
		n.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", space).Run() })
		n.ip("link", "add", far, "netns", space, "type", "veth", "peer", "name", near, "netns", n.hub)
		inside = func(args ...string) { n.ip(append([]string{"-n", space}, args...)...) }
		inside("link", "set", "lo", "up")
	}
	n.ip("-n", n.hub, "addr", "add", subnet+".1/24", "dev", near)
	n.ip("-n", n.hub, "link", "set", near, "up")
	inside("addr", "add", n.at[name]+"/24", "dev", far)
	inside("link", "set", far, "up")
	if name == "client" {
		inside("route", "add", net213+".0.0/16", "via", subnet+".1")
	} else {
		inside("route", "add", "default", "via", subnet+".1")
	}
}

// inside is what starts a program in a namespace.
func (n *nets) inside(name string) []string {
	return []string{"ip", "netns", "exec", n213(n.t, name)}
}

// cut loses what from sends to to, from now on.
func (n *nets) cut(from, to string) {
	n.t.Helper()
	if from != to && !n.cuts[[2]string{from, to}] {
		n.cuts[[2]string{from, to}] = true
		n.ip("-n", n.hub, "rule", "add", "from", n.at[from], "to", n.at[to], "blackhole", "prio", "100")
	}
}

// part cuts both ways between each of some and each of others.
func (n *nets) part(some, others []string) {
	n.t.Helper()
	for _, a := range some {
		for _, b := range others {
			n.cut(a, b)
			n.cut(b, a)
		}
	}
}

// heal ends the cuts that a name has part in; without one, all.
func (n *nets) heal(names ...string) {
	n.t.Helper()
	for cut := range n.cuts {
		if len(names) == 0 || cut[0] == names[0] || cut[1] == names[0] {
			n.ip("-n", n.hub, "rule", "del", "from", n.at[cut[0]], "to", n.at[cut[1]], "blackhole", "prio", "100")
			delete(n.cuts, cut)
		}
	}
}
