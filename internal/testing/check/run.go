package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"
)

// runStep builds the parts that the step needs, and runs it.
func (c *check) runStep(ctx context.Context, s *step) outcome {
	c.builder.runScripts(ctx, s.builds)
	c.printLine("%s: %s", s.name, s.about)
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
	c.printLine("%s %s after %.0f s and %.0f s of CPU", s.name, word, took.Seconds(), r.used.Seconds())
	return outcome{s, r, took}
}

// newCommand returns a command that is interrupted, with the programs that it runs, when ctx ends. It then has a
// minute to tidy up.
func newCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Minute
	startGroup(cmd)
	return cmd
}

// runCommand runs the command of a step and shows its output. A step alone shows it as it comes.
func runCommand(ctx context.Context, s *step, r *report) {
	cmd := newCommand(ctx, s.command[0], s.command[1:]...)
	var output bytes.Buffer
	cmd.Stdout = &output
	if s.alone {
		cmd.Stdout = os.Stdout
	}
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	r.used = cpuTime(cmd)
	_, _ = os.Stdout.Write(output.Bytes())
	if err != nil {
		r.addFailure(strings.Join(s.command, " "), err)
		return
	}
	r.passed++
}

// cpuTime returns how much CPU time a command that has ended took, with all that it waited for.
func cpuTime(cmd *exec.Cmd) time.Duration {
	if cmd.ProcessState == nil {
		return 0 // it was not started
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// runTests runs go test on the packages of a step.
func (c *check) runTests(ctx context.Context, s *step, r *report) {
	pkgs := c.catalogueOf(s)
	args := []string{"test", "-json", "-vet=off", "-ldflags=-w", "-timeout", c.limitTime(s).String()} // without what only a debugger reads, which takes time to link
	switch {
	case c.times:
		args = append(args, "-p", "1", "-count", "1")
	case s.short:
		args = append(args, "-p", "2") // go may answer from its cache
	default:
		args = append(args, "-p", "2", "-count", "1") // the cache knows nothing of engines and servers
	}
	if s.race {
		args = append(args, "-race")
	}
	if s.race || s.short {
		args = append(args, "-short")
	}
	if s.covers > 0 {
		args, r.covers = append(args, "-cover"), s.covers
	}
	if s.run != "" {
		args = append(args, "-run", s.run)
	}
	if s.skip != "" {
		args = append(args, "-skip", s.skip)
	}
	for _, name := range pkgs.matchPackages(s, steps) {
		args = append(args, "./"+name)
	}
	cmd := newCommand(ctx, "go", args...)
	cmd.Dir = pkgs.dir
	cmd.Env = os.Environ()
	if s.race {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.addFailure("go test", err)
		return
	}
	readErr := r.readEvents(out)
	if err := cmd.Wait(); readErr != nil || err != nil && len(r.failed) == 0 {
		r.addFailure("go test", errors.Join(readErr, err))
	}
	r.used = cpuTime(cmd)
	if r.passed == 0 && len(r.failed) == 0 && r.skipped == 0 {
		r.addFailure("go test", errNoTest)
	}
}
