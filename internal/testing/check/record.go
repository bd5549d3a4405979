package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"
)

// A pass says when a step last passed on this machine, and with which files.
type pass struct {
	Files    string    `json:"files"` // a hash of them
	Time     time.Time `json:"time"`
	Seconds  float64   `json:"seconds"`
	Slowness float64   `json:"slowness"`
}

// A record holds the last pass of each step, in a file in the user's cache directory.
type record struct {
	path   string
	passes map[string]pass
}

// openRecord reads the record. A file that is missing or damaged makes an empty one.
func openRecord() *record {
	r := &record{passes: map[string]pass{}}
	dir, err := os.UserCacheDir()
	if err != nil {
		return r
	}
	r.path = filepath.Join(dir, "atoll-test", "check.json")
	data, err := os.ReadFile(r.path)
	if err == nil && json.Unmarshal(data, &r.passes) != nil {
		r.passes = map[string]pass{}
	}
	return r
}

// addPass notes that a step passed, and writes the file.
func (r *record) addPass(name string, p pass) error {
	r.passes[name] = p
	if r.path == "" {
		return nil
	}
	data, err := json.MarshalIndent(r.passes, "", "\t")
	if err != nil {
		return err
	}
	temporary := r.path + ".new"
	return errors.Join(os.MkdirAll(filepath.Dir(r.path), 0o755), os.WriteFile(temporary, data, 0o644), os.Rename(temporary, r.path))
}
