package providertest

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// Bench measures the operations that users wait for. The names of the benchmarks are the same for all
// providers, so that benchstat compares them.
func Bench(b *testing.B, open func(b *testing.B) atoll.Provider, opts ...Option) {
	cfg := newConfig(opts)
	run := func(name string, need need, f func(b *testing.B, m *benchHarness)) {
		b.Run(name, func(b *testing.B) {
			p := open(b)
			b.Cleanup(func() { p.Close() })
			if need != nil {
				if reason := need(p.Info(), cfg); reason != "" {
					b.Skip(reason)
				}
			}
			m := &benchHarness{p: p, spec: &atoll.Spec{Image: cfg.image}}
			if err := atoll.Prepare(context.Background(), p, m.spec, nil); err != nil {
				b.Fatalf("Prepare: %v", err)
			}
			b.ReportAllocs()
			f(b, m)
		})
	}
	run("Create", nil, benchCreate)
	run("Exec", nil, benchExec)
	for _, size := range []struct {
		name string
		n    int
	}{{"1MiB", 1 << 20}, {"64MiB", 64 << 20}} {
		run("Write/"+size.name, needFiles, func(b *testing.B, m *benchHarness) { benchWrite(b, m, size.n) })
		run("Read/"+size.name, needFiles, func(b *testing.B, m *benchHarness) { benchRead(b, m, size.n) })
	}
	run("TTYEcho", needTTY, benchEcho)
	run("Get/1000", nil, func(b *testing.B, m *benchHarness) {
		ids := m.createMany(b, 1000)
		for i := 0; b.Loop(); i++ {
			if _, err := m.p.Get(context.Background(), ids[i%len(ids)]); err != nil {
				b.Fatalf("Get: %v", err)
			}
		}
	})
	run("List/1000", nil, func(b *testing.B, m *benchHarness) {
		m.createMany(b, 1000)
		for b.Loop() {
			if all, err := m.p.List(context.Background(), atoll.Filter{}); err != nil || len(all) != 1000 {
				b.Fatalf("List: %d sandboxes, %v", len(all), err)
			}
		}
	})
}

// A benchHarness holds the state of one benchmark.
type benchHarness struct {
	p    atoll.Provider
	spec *atoll.Spec
}

// createSandbox creates a sandbox, or fails the benchmark.
func (m *benchHarness) createSandbox(b *testing.B) atoll.Sandbox {
	b.Helper()
	sb, err := m.p.Create(context.Background(), m.spec)
	if err != nil {
		b.Fatalf("Create: %v", err)
	}
	return sb
}

// removeSandbox removes a sandbox and its volumes, or fails the benchmark.
func (m *benchHarness) removeSandbox(b *testing.B, sb atoll.Sandbox) {
	b.Helper()
	if err := sb.Remove(context.Background(), atoll.RemoveVolumes()); err != nil {
		b.Fatalf("Remove: %v", err)
	}
}

// plainSandbox creates a sandbox that the end of the benchmark removes.
func (m *benchHarness) plainSandbox(b *testing.B) atoll.Sandbox {
	b.Helper()
	sb := m.createSandbox(b)
	b.Cleanup(func() { m.removeSandbox(b, sb) })
	return sb
}

// createMany creates n sandboxes without starting them, and returns their ids.
func (m *benchHarness) createMany(b *testing.B, n int) []string {
	b.Helper()
	spec := *m.spec
	spec.NoStart = true
	var ids []string
	for range n {
		sb, err := m.p.Create(context.Background(), &spec)
		if err != nil {
			b.Fatalf("Create: %v", err)
		}
		b.Cleanup(func() { m.removeSandbox(b, sb) })
		ids = append(ids, sb.ID())
	}
	return ids
}

// benchCreate measures the time from Create to the first byte of a command's output.
func benchCreate(b *testing.B, m *benchHarness) {
	for b.Loop() {
		sb := m.createSandbox(b)
		m.runEcho(b, sb)
		b.StopTimer()
		m.removeSandbox(b, sb)
		b.StartTimer()
	}
}

// benchExec measures the time from Exec to the exit of a command.
func benchExec(b *testing.B, m *benchHarness) {
	sb := m.plainSandbox(b)
	for b.Loop() {
		m.runEcho(b, sb)
	}
}

// runEcho runs echo and checks its output.
func (m *benchHarness) runEcho(b *testing.B, sb atoll.Sandbox) {
	b.Helper()
	out, err := atoll.Output(context.Background(), sb, programCommand("echo", "hello"))
	if err != nil || string(out) != "hello\n" {
		b.Fatalf("echo printed %q, %v", out, err)
	}
}

// benchWrite measures writing a file of size bytes.
func benchWrite(b *testing.B, m *benchHarness, size int) {
	sb, data := m.plainSandbox(b), patternBytes(size)
	b.SetBytes(int64(size))
	for b.Loop() {
		if _, err := atoll.Files(sb).Write(context.Background(), "f", bytes.NewReader(data), atoll.WriteOptions{}); err != nil {
			b.Fatalf("Write: %v", err)
		}
	}
}

// benchRead measures reading a file of size bytes.
func benchRead(b *testing.B, m *benchHarness, size int) {
	sb := m.plainSandbox(b)
	if err := atoll.WriteFile(context.Background(), sb, "f", patternBytes(size), 0); err != nil {
		b.Fatalf("WriteFile: %v", err)
	}
	b.SetBytes(int64(size))
	for b.Loop() {
		r, _, err := atoll.Files(sb).Read(context.Background(), "f", 0)
		if err != nil {
			b.Fatalf("Read: %v", err)
		}
		n, err := io.Copy(io.Discard, r)
		r.Close()
		if n != int64(size) || err != nil {
			b.Fatalf("read %d bytes, %v", n, err)
		}
	}
}

// benchEcho measures the time from typing an empty line to its echo and the copy that cat prints. The
// line is empty because a terminal accepts only a limited number of keys without an end of line.
func benchEcho(b *testing.B, m *benchHarness) {
	sb := m.plainSandbox(b)
	in, keyboard := io.Pipe()
	echo, out := io.Pipe()
	cmd := addTTY(programCommand("cat"))
	cmd.Stdin, cmd.Stdout = in, out
	p, err := sb.Exec(context.Background(), cmd)
	if err != nil {
		b.Fatalf("Exec: %v", err)
	}
	enter, shown := []byte("\r"), make([]byte, len("\r\n\r\n"))
	for b.Loop() {
		if _, err := keyboard.Write(enter); err != nil {
			b.Fatalf("typing: %v", err)
		}
		if _, err := io.ReadFull(echo, shown); err != nil {
			b.Fatalf("reading the echo: %v", err)
		}
	}
	go io.Copy(io.Discard, echo)
	if err := p.Signal(context.Background(), atoll.SIGKILL); err != nil {
		b.Errorf("Signal: %v", err)
	}
	p.Wait(context.Background())
	keyboard.Close()
	echo.Close()
}
