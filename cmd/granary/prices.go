package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/granarydb/granary/chunkstore/bucket/layer"
)

// Prices is what a store's requests cost, in dollars: the price table behind
// granary_bucket_cost_dollars_total. A file for --prices has these fields, and those it
// leaves out cost nothing:
//
//	{"name": "S3 Standard, eu-central-1", "putPer1000": 0.0054, "getPer1000": 0.00043,
//	 "headPer1000": 0.00043, "listPer1000": 0.0054, "deletePer1000": 0, "readPerGB": 0, "writtenPerGB": 0}
//
// Storage is not in it: it is not a request. Traffic is free between S3 and machines of its
// region, which is why readPerGB is 0 by default.
type Prices struct {
	Name string `json:"name"`
	// Per 1000 requests, whatever the answer.
	PutPer1000    float64 `json:"putPer1000"`
	GetPer1000    float64 `json:"getPer1000"`
	HeadPer1000   float64 `json:"headPer1000"`
	ListPer1000   float64 `json:"listPer1000"`
	DeletePer1000 float64 `json:"deletePer1000"`
	// Per 10^9 bytes of bodies received and sent.
	ReadPerGB    float64 `json:"readPerGB"`
	WrittenPerGB float64 `json:"writtenPerGB"`
}

// s3Standard are the prices of S3 Standard in us-east-1.
var s3Standard = Prices{Name: "S3 Standard, us-east-1", PutPer1000: 0.005, GetPer1000: 0.0004, HeadPer1000: 0.0004, ListPer1000: 0.005}

// Cost is what a count of requests of one verb costs, in dollars.
func (p Prices) Cost(v layer.Verb, n layer.Count) float64 {
	per1000, perGB := 0.0, 0.0
	switch v {
	case layer.Put:
		per1000, perGB = p.PutPer1000, p.WrittenPerGB
	case layer.Get:
		per1000, perGB = p.GetPer1000, p.ReadPerGB
	case layer.Head:
		per1000 = p.HeadPer1000
	case layer.List:
		per1000 = p.ListPer1000
	case layer.Delete:
		per1000 = p.DeletePer1000
	}
	return float64(n.Requests)/1000*per1000 + float64(n.Bytes)/1e9*perGB
}

// loadPrices reads a price table; "" is that of S3 Standard.
func loadPrices(file string) (Prices, error) {
	if file == "" {
		return s3Standard, nil
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return Prices{}, usage("--prices: %v", err)
	}
	var p Prices
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Prices{}, usage("--prices %s: %v: it is a JSON object such as {\"name\": \"mine\", \"putPer1000\": 0.005, \"getPer1000\": 0.0004}", file, err)
	}
	for _, v := range []float64{p.PutPer1000, p.GetPer1000, p.HeadPer1000, p.ListPer1000, p.DeletePer1000, p.ReadPerGB, p.WrittenPerGB} {
		if v < 0 {
			return Prices{}, usage("--prices %s: %v: a price is not negative", file, v)
		}
	}
	if p.Name == "" {
		p.Name = fmt.Sprintf("those of %s", file)
	}
	return p, nil
}
