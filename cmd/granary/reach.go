package main

import (
	"github.com/granarydb/granary/router"
	"github.com/prometheus/client_golang/prometheus"
)

// shapesShown is how many kinds of broadcasts /metrics shows.
const shapesShown = 20

// collectRouter is how far operations reached, by collection. What did not happen is left out.
func collectRouter(out chan<- prometheus.Metric, r *router.Router) {
	for _, t := range r.Targeting() {
		ns := t.Namespace.String()
		for v, reaches := range t.Operations {
			for reach, n := range reaches {
				if n > 0 {
					counter(out, reachDesc, float64(n), ns, router.Verb(v).String(), router.Reach(reach).String())
				}
			}
		}
		gauge(out, shareDesc, t.Share(), ns)
	}
	for _, k := range r.Broadcasts(shapesShown) {
		gauge(out, shapesDesc, float64(k.Count), k.Namespace.String(), k.Verb.String(), k.Shape)
	}
}
