package main

import (
	"bytes"
	"context"
	"errors"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
)

// parseTail parses a number of lines; -1 means all.
func parseTail(s string) (int, error) {
	if s == "all" {
		return -1, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, usageErrorf("tail %q: write a number of lines, or all", s)
	}
	return n, nil
}

// A streamTail holds the retained output of a stream.
type streamTail struct {
	start int64 // offset of the first byte
	data  []byte
}

func (t *streamTail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	return len(p), nil
}

// lastLines returns the offset of the last n lines, and whether there are as many.
func (t *streamTail) lastLines(n int) (offset int64, complete bool) {
	rest := t.data
	for range n {
		if len(rest) == 0 {
			return t.start, false
		}
		rest = rest[:bytes.LastIndexByte(rest[:len(rest)-1], '\n')+1]
	}
	return t.start + int64(len(rest)), true
}

// printTail prints the last lines of each stream of p, and with follow what comes after them. gap reports lines that
// are no longer retained.
func (a *app) printTail(ctx context.Context, p atoll.Process, st atoll.ProcessStatus, lines int, follow bool, gap func(s atoll.Stream, from, to int64)) error {
	tails := map[atoll.Stream]*streamTail{atoll.Stdout: {start: st.Stdout.Oldest}, atoll.Stderr: {start: st.Stderr.Oldest}}
	err := p.Attach(ctx, &atoll.Attachment{
		Stdout: tails[atoll.Stdout], Stderr: tails[atoll.Stderr], StdoutFrom: st.Stdout.Oldest, StderrFrom: st.Stderr.Oldest, NoFollow: true,
		Gap: func(s atoll.Stream, _, to int64) { *tails[s] = streamTail{start: to} },
	})
	if err != nil {
		return err
	}
	from := map[atoll.Stream]int64{}
	for _, s := range []atoll.Stream{atoll.Stdout, atoll.Stderr} {
		t, complete := tails[s], false
		if from[s], complete = t.lastLines(lines); !complete && t.start > 0 {
			gap(s, 0, t.start)
		}
	}
	if follow {
		return p.Attach(ctx, &atoll.Attachment{
			Stdout: a.stdout, Stderr: a.stderr, StdoutFrom: from[atoll.Stdout], StderrFrom: from[atoll.Stderr], Gap: gap,
		})
	}
	out, errs := tails[atoll.Stdout], tails[atoll.Stderr]
	_, err = a.stdout.Write(out.data[from[atoll.Stdout]-out.start:])
	_, stderrErr := a.stderr.Write(errs.data[from[atoll.Stderr]-errs.start:])
	return errors.Join(err, stderrErr)
}

// logsFlagError adds the reason to an error about a flag of docker logs that needs times.
func logsFlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		switch name := unknown.GetSpecifiedName(); name {
		case "since", "until", "timestamps":
			return usageErrorf("unknown flag --%s: a sandbox retains output without times; use --tail or --from", name)
		case "t":
			return usageErrorf("unknown flag -t: a sandbox retains output without times; use --tail or --from")
		}
	}
	return flagError(cmd, err)
}
