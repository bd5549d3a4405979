//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// The rows of streaming, and their goals.
const (
	lineOfCommand = "a line of a command's output, via the API"
	eventOfAgent  = "an event of an agent, by server-sent events"
)

var streamGoals = []goal{{row: eventOfAgent, than: lineOfCommand, millis: 2}}

// printScript prints the time repeatedly. Each line is one event.
const printScript = "for i in $(seq 40); do date +%s%N; sleep 0.01; done"

// measureStream measures the time from an agent's output to its arrival at a client.
func (b *bench) measureStream(ctx context.Context) (err error) {
	s, err := startServer(ctx, b, "stream", "ATOLL_TEMPLATE_DEFAULT=shell")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	if _, err := s.runPrompt(ctx, "true"); err != nil { // creates the sandbox
		return err
	}
	box, err := atoll.Resolve(ctx, s, "", "stream")
	if err != nil {
		return err
	}
	return b.compareMethods(ctx, "Agents: from print to client", streamGoals, []method{
		{lineOfCommand, func(ctx context.Context) (time.Duration, error) {
			var late delayRecorder
			err := atoll.Run(ctx, box, &atoll.Command{Args: []string{"sh", "-c", printScript}, Stdout: &late})
			return late.medianDelay(), err
		}},
		{eventOfAgent, func(ctx context.Context) (time.Duration, error) { return s.runPrompt(ctx, printScript) }},
	})
}

// A delayRecorder is a writer for lines with the time at which they were printed. It records their
// delays.
type delayRecorder struct {
	part []byte
	all  []time.Duration
}

func (l *delayRecorder) Write(b []byte) (int, error) {
	now := time.Now().UnixNano()
	l.part = append(l.part, b...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte{'\n'})
		if !ok {
			return len(b), nil
		}
		if at, err := strconv.ParseInt(string(line), 10, 64); err == nil {
			l.all = append(l.all, time.Duration(now-at))
		}
		l.part = rest
	}
}

// medianDelay returns the median delay, or 0 without lines.
func (l *delayRecorder) medianDelay() time.Duration {
	if len(l.all) == 0 {
		return 0
	}
	slices.Sort(l.all)
	return l.all[len(l.all)/2]
}

// runPrompt has an agent run a script, and returns the median delay of its lines.
func (s *server) runPrompt(ctx context.Context, script string) (time.Duration, error) {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(s.state, "atoll.sock"))
	}}}
	defer client.CloseIdleConnections()
	body, err := json.Marshal(map[string]string{"prompt": script})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", "http://atoll/v1/conversation/bench/sandbox/stream", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return 0, fmt.Errorf("%s: %s", resp.Status, text)
	}
	var late delayRecorder
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		var e struct{ Type, Delta string }
		if !ok || json.Unmarshal([]byte(data), &e) != nil || e.Type != "text-delta" {
			continue
		}
		if _, err := late.Write([]byte(e.Delta)); err != nil {
			return 0, err
		}
	}
	return late.medianDelay(), nil
}
