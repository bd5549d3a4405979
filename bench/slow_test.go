//go:build linux

package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A slow link delivers all bytes, no sooner than it may, and counts requests.
func TestSlowLink(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(w, r.Body); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	const way = 5 * time.Millisecond
	link, err := startSlowLink(strings.TrimPrefix(server.URL, "http://"), way)
	if err != nil {
		t.Fatal(err)
	}
	link.counts.Store(true)
	client := &http.Client{Transport: &http.Transport{}}
	for i, test := range []struct {
		size int
		ways time.Duration
	}{
		{0, 4}, {100, 2}, {3 << 20, 2}, // the first one makes the connection
	} {
		sent := bytes.Repeat([]byte{byte(i + 1)}, test.size)
		start := time.Now()
		r, err := client.Post("http://"+link.Addr().String(), "", bytes.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		took := time.Since(start)
		r.Body.Close()
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes: got %d back, error %v", test.size, len(got), err)
		}
		if least := test.ways * way; took < least {
			t.Errorf("%d bytes: took %v, want at least %v", test.size, took, least)
		}
	}
	if err := link.Close(); err != nil {
		t.Error(err)
	}
	if got := link.requests.Load(); got != 3 {
		t.Errorf("counted %d requests, want 3", got)
	}
	if r, err := client.Get("http://" + link.Addr().String()); err == nil {
		r.Body.Close()
		t.Error("a closed link carries on")
	}
}

// makeTree makes the same tree each time, and sumOf detects a changed file.
func TestTree(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: writes 200 MiB")
	}
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, b} {
		if err := makeTree(dir); err != nil {
			t.Fatal(err)
		}
	}
	first, err := sumTree(a)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := sumTree(b); err != nil || second != first {
		t.Errorf("two trees have the sums %x and %x, error %v", first, second, err)
	}
	p := &syncPeer{tree: b}
	if err := p.changeFile(); err != nil {
		t.Fatal(err)
	}
	if third, err := sumTree(b); err != nil || third == first {
		t.Errorf("a tree with another file has the same sum, or the error %v", err)
	}
}
