//go:build linux

package gvisor_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// programs holds the programs of this binary, by name: see supervisedtest.RunProgram.
var programs = map[string]func(args []string) error{
	"dial":     dialProgram,
	"flip":     flipProgram,
	"churn":    churnProgram,
	"create":   createProgram,
	"make":     makeProgram,
	"once":     onceProgram,
	"power":    powerProgram,
	"remove":   removeProgram,
	"snapshot": snapshotProgram,
	"start":    startProgram,
	"suite":    suiteProgram,
	"xattr":    xattrProgram,
}

// dialProgram connects to a network and address and prints what it receives.
func dialProgram(args []string) error {
	conn, err := net.DialTimeout(args[0], args[1], 2*time.Minute)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(os.Stdout, conn)
	return err
}

// flipProgram makes the name args[0] by turns a directory and a link to each of the other
// arguments, until it is killed.
func flipProgram(args []string) error {
	name := args[0]
	dir := name + ".dir"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, target := range args[1:] {
		if err := os.Symlink(target, name+".link"+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	fmt.Println("flipping")
	for i := 0; ; i = (i + 1) % len(args[1:]) {
		link := name + ".link" + strconv.Itoa(i)
		for _, at := range []string{dir, link} {
			// Others may have removed either, or made the name anew.
			if at == link {
				_ = os.Symlink(args[1+i], link)
			} else {
				_ = os.Mkdir(dir, 0o755)
			}
			_ = os.RemoveAll(name)
			_ = os.Rename(at, name)
			time.Sleep(50 * time.Microsecond)
			_ = os.Rename(name, at)
		}
	}
}

// openProgram opens the provider of lab.startProvider, and returns the rest of args.
func openProgram(args []string, change ...func(*gvisor.Options)) (*gvisor.Provider, []string, error) {
	opts := gvisor.Options{Dir: args[0], RunDir: args[1], Helper: args[2], Cgroup: args[3]}
	for _, f := range change {
		f(&opts)
	}
	p, err := gvisor.New(opts)
	return p, args[4:], err
}

// churnProgram makes, uses, stops, starts and removes the sandboxes args[1:] again and
// again, until it is killed or has done args[0] rounds.
func churnProgram(args []string) error {
	p, args, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	rounds, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	fmt.Println("churning")
	for i := range rounds {
		if err := supervisedtest.ChurnSandbox(p, args[1+i%len(args[1:])]); err != nil {
			return err
		}
	}
	return nil
}
