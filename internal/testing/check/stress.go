package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// runStress runs a test many times while other work keeps the CPUs busy, and prints how often it
// failed.
func runStress(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("check stress", flag.ExitOnError)
	pkg := flags.String("pkg", "", "the folder of the package, such as ./pool")
	run := flags.String("run", "", "the tests, a pattern as for go test -run")
	times := flags.Int("n", 20, "the number of runs")
	load := flags.Int("load", 3*runtime.NumCPU(), "the number of threads that keep the CPUs busy")
	race := flags.Bool("race", false, "with the race detector")
	short := flags.Bool("short", false, "with -short")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *pkg == "" {
		return errors.New("name a package, as in: make stress PKG=./pool RUN=TestHit")
	}
	scratch, err := os.MkdirTemp("/tmp", "at.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	_, slowness, err := measureSlowness(scratch)
	if err != nil {
		return err
	}
	if err := setSlowness(slowness); err != nil {
		return err
	}
	program := filepath.Join(scratch, "test")
	build := []string{"test", "-c", "-o", program}
	if *race {
		build = append(build, "-race")
		os.Setenv("CGO_ENABLED", "1")
	}
	if out, err := exec.CommandContext(ctx, "go", append(build, *pkg)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the test: %w\n%s", err, out)
	}
	stopLoad := keepBusy(*load, filepath.Join(scratch, "empty"))
	defer stopLoad()
	failed := 0
	for i := range *times {
		cmd := exec.CommandContext(ctx, program, "-test.run", *run, "-test.timeout", "30m", "-test.v", fmt.Sprintf("-test.short=%v", *short))
		cmd.Dir = *pkg
		begin := time.Now()
		out, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			*times = i
			break
		}
		if bytes.Contains(out, []byte("testing: warning: no tests to run")) {
			return fmt.Errorf("no test of %s matches %q", *pkg, *run)
		}
		word := "ok"
		if err != nil {
			failed++
			word = "FAILED"
			_, _ = os.Stdout.Write(lastLines(out, 200))
		} else if !bytes.Contains(out, []byte("--- PASS: ")) {
			_, _ = os.Stdout.Write(lastLines(out, 20))
			return fmt.Errorf("the tests of %s that match %q skip themselves", *pkg, *run)
		}
		fmt.Printf("%3d  %-6s %7.1fs\n", i+1, word, time.Since(begin).Seconds())
	}
	fmt.Printf("failed %d of %d runs, beside %d busy threads\n", failed, *times, *load)
	if failed > 0 {
		return errFailed
	}
	return ctx.Err()
}

// keepBusy lets that many threads compute, and one more start a program again and again, until the caller
// calls stop.
func keepBusy(threads int, program string) (stop func()) {
	runtime.GOMAXPROCS(threads + 2)
	done := make(chan struct{})
	ended := make(chan struct{})
	spin := func(work func()) {
		defer func() { ended <- struct{}{} }()
		for {
			select {
			case <-done:
				return
			default:
				work()
			}
		}
	}
	for range threads {
		go spin(func() {
			var x uint64
			for i := range uint64(1 << 20) {
				x += i * i
			}
			runtime.KeepAlive(x)
		})
	}
	go spin(func() { _ = exec.Command(program).Run() })
	return func() {
		close(done)
		for range threads + 1 {
			<-ended
		}
	}
}

// lastLines returns the last n lines of a text.
func lastLines(text []byte, n int) []byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], nil)
}
