package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// runStep builds what the step needs, runs it, and notes that it passed.
func (c *check) runStep(ctx context.Context, s *step) *report {
	c.builder.build(ctx, s.builds)
	c.say("%s: %s", s.name, s.about)
	begin := time.Now()
	r := newReport(os.Stdout)
	r.cpu = c.times
	if s.command != nil {
		runCommand(ctx, s, r)
	} else {
		c.runTests(ctx, s, r)
	}
	took, word := time.Since(begin), "passed"
	if len(r.failed) > 0 {
		word = "FAILED"
	}
	c.say("%s %s after %.0f s", s.name, word, took.Seconds())
	if len(r.failed) == 0 && ctx.Err() == nil {
		p := pass{Files: c.hash(s), Time: time.Now(), Seconds: took.Seconds(), Slowness: c.slowness}
		if err := c.record.add(s.name, p); err != nil {
			c.say("%s: its pass was not noted: %v", s.name, err)
		}
	}
	return r
}

// runCommand runs the command of a step and shows its output. A step alone shows it as it comes.
func runCommand(ctx context.Context, s *step, r *report) {
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	var output bytes.Buffer
	cmd.Stdout = &output
	if s.alone {
		cmd.Stdout = os.Stdout
	}
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	_, _ = os.Stdout.Write(output.Bytes())
	if err != nil {
		r.addFailure(strings.Join(s.command, " "), err)
		return
	}
	r.passed++
}

// runTests runs go test on the packages of a step.
func (c *check) runTests(ctx context.Context, s *step, r *report) {
	pkgs := c.catalogue(s)
	args := []string{"test", "-json", "-vet=off", "-timeout", c.timeLimit().String()}
	switch {
	case c.times:
		args = append(args, "-p", "1", "-count", "1")
	case s.short:
		args = append(args, "-p", "2") // what go remembers of the last run is good enough
	default:
		args = append(args, "-p", "2", "-count", "1") // it knows nothing of engines and servers
	}
	if s.race {
		args = append(args, "-race")
	}
	if s.race || s.short {
		args = append(args, "-short")
	}
	if s.run != "" {
		args = append(args, "-run", s.run)
	}
	if s.skip != "" {
		args = append(args, "-skip", s.skip)
	}
	for _, name := range pkgs.match(s, steps) {
		args = append(args, "./"+name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = pkgs.dir
	cmd.Env = os.Environ()
	if s.race {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	// The tests have a minute to tidy up.
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGINT) }, time.Minute
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.addFailure("go test", err)
		return
	}
	readErr := r.read(out)
	if err := cmd.Wait(); readErr != nil || err != nil && len(r.failed) == 0 {
		r.addFailure("go test", err)
	}
	if r.passed == 0 && len(r.failed) == 0 && r.skipped == 0 {
		r.addFailure("go test", errNoTest)
	}
}
