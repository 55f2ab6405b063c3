package peers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"pgregory.net/rapid"
)

// text is a plan in one line.
func text(take []seen, give *gift) string {
	var out []string
	for _, s := range take {
		out = append(out, "take "+string(s.id))
	}
	if give != nil {
		out = append(out, fmt.Sprintf("give %s to %s", give.shard, give.to))
	}
	return strings.Join(out, ", ")
}

func TestPlans(t *testing.T) {
	t.Parallel()
	anyone := func(holder string, held int) candidate { return candidate{holder: holder, any: true, held: held} }
	only := func(holder string, held int, named ...manifest.ShardID) candidate {
		return candidate{holder: holder, held: held, named: named}
	}
	free := func(id manifest.ShardID, waited int) seen { return seen{id: id, free: true, waited: waited} }
	gone := func(id manifest.ShardID, waited int) seen { return seen{id: id, gone: true, waited: waited} }
	mine := func(id manifest.ShardID) seen { return seen{id: id, mine: true} }
	for _, c := range []struct {
		what string
		v    view
		want string
	}{
		{"nothing to do", view{self: anyone("a", 1), shards: []seen{mine("s1"), {id: "s2"}}, settled: true}, ""},
		{"free shards one at a time at first", view{self: anyone("a", 0), shards: []seen{free("s1", 0), free("s2", 0)}}, "take s1"},
		{"all of them when nobody else came", view{self: anyone("a", 0), shards: []seen{free("s1", 0), free("s2", 0)}, settled: true}, "take s1, take s2"},
		{"the shards of the dead at once", view{self: anyone("a", 0), shards: []seen{gone("s1", 0), gone("s2", 0)}}, "take s1, take s2"},
		{"the one with fewer shards takes it", view{self: anyone("a", 2), others: []candidate{anyone("b", 1)}, shards: []seen{gone("s1", 0)}}, ""},
		{"the next in line after a while", view{self: anyone("a", 2), others: []candidate{anyone("b", 1)}, shards: []seen{gone("s1", 1)}}, "take s1"},
		{"the dead one's shards are spread", view{self: anyone("a", 1), others: []candidate{anyone("b", 1)}, shards: []seen{gone("s1", 0), gone("s2", 0)}}, "take s2"},
		{"what it lost it takes back, whoever has fewer", view{self: anyone("a", 3), others: []candidate{anyone("b", 0)}, shards: []seen{{id: "s1", lost: true}}}, "take s1"},
		{"not a shard that it is not for", view{self: only("a", 0, "s1"), shards: []seen{free("s2", 9)}, settled: true}, ""},
		{"who was started for it comes first", view{self: only("a", 5, "s1"), others: []candidate{anyone("b", 0)}, shards: []seen{free("s1", 0)}}, "take s1"},
		{"a named shard goes home", view{self: anyone("a", 1), others: []candidate{only("b", 0, "s1")}, shards: []seen{mine("s1")}}, "give s1 to b"},
		{"not while the view is new", view{self: anyone("a", 2), others: []candidate{anyone("b", 0)}, shards: []seen{mine("s1"), mine("s2")}}, ""},
		{"not while a shard has no holder", view{self: anyone("a", 2), others: []candidate{anyone("b", 0)}, shards: []seen{mine("s1"), mine("s2"), gone("s3", 0)}, settled: true}, ""},
		{"one more is even", view{self: anyone("a", 1), others: []candidate{anyone("b", 0)}, shards: []seen{mine("s1")}, settled: true}, ""},
		{"only the fullest gives", view{self: anyone("b", 2), others: []candidate{anyone("a", 2), anyone("c", 0)}, shards: []seen{mine("s1"), mine("s2")}, settled: true}, ""},
		{"a named shard stays", view{self: candidate{holder: "a", named: []manifest.ShardID{"s1", "s2"}, held: 2}, others: []candidate{anyone("b", 0)}, shards: []seen{mine("s1"), mine("s2")}, settled: true}, ""},
		{"nothing is given to who takes only others", view{self: anyone("a", 2), others: []candidate{only("b", 0, "s9")}, shards: []seen{mine("s1"), mine("s2")}, settled: true}, ""},
	} {
		if got := text(plan(c.v)); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestPlansOfAllAgree makes the plans of all processes from one state of the cluster: no two
// take the same shard at once, every shard without a holder is taken by somebody in the end,
// and carrying the plans out leads to an even share.
func TestPlansOfAllAgree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		processes, shards := rapid.IntRange(1, 5).Draw(t, "processes"), rapid.IntRange(1, 12).Draw(t, "shards")
		holder := make([]int, shards) // -1: nobody
		for i := range holder {
			holder[i] = rapid.IntRange(-1, processes-1).Draw(t, "holder")
		}
		for step := range 10 * (shards + 1) {
			moves := make(map[int]int)
			for p := range processes {
				v := view{settled: true}
				for q := range processes {
					c := candidate{holder: fmt.Sprint(q), any: true}
					for _, h := range holder {
						if h == q {
							c.held++
						}
					}
					if q == p {
						v.self = c
					} else {
						v.others = append(v.others, c)
					}
				}
				for i, h := range holder {
					v.shards = append(v.shards, seen{id: manifest.ShardID(fmt.Sprintf("shard%02d", i)), gone: h < 0, mine: h == p})
				}
				take, give := plan(v)
				for _, s := range take {
					var i int
					fmt.Sscanf(string(s.id), "shard%02d", &i)
					if other, ok := moves[i]; ok {
						t.Fatalf("%d and %d both take %s", other, p, s.id)
					}
					moves[i] = p
				}
				if give != nil {
					var i, to int
					fmt.Sscanf(string(give.shard), "shard%02d", &i)
					fmt.Sscan(give.to, &to)
					moves[i] = to
				}
			}
			if len(moves) == 0 {
				break
			}
			if step == 10*(shards+1)-1 {
				t.Fatalf("the shards never come to rest: %v", holder)
			}
			for i, p := range moves {
				holder[i] = p
			}
		}
		count := make([]int, processes)
		for _, h := range holder {
			if h < 0 {
				t.Fatal("a shard has no holder in the end")
			}
			count[h]++
		}
		for _, n := range count {
			if n < shards/processes || n > (shards+processes-1)/processes {
				t.Fatalf("shares %v of %d shards", count, shards)
			}
		}
	})
}
