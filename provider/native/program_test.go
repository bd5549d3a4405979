//go:build linux

package native_test

import (
	"context"
	"errors"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/native"
)

// programs holds the programs of this binary, by name: see supervisedtest.RunProgram.
var programs = map[string]func(args []string) error{
	"churn":   churnProgram,
	"create":  createProgram,
	"make":    makeProgram,
	"halt":    haltProgram,
	"remove":  removeProgram,
	"spy":     spyProgram,
	"calls":   callsProgram,
	"power":   powerProgram,
	"stopper": stopperProgram,
	"suite":   suiteProgram,
}

// createProgram makes a sandbox with the id args[0], whose supervisor halts before the step args[1], if there is one.
func createProgram(args []string) error {
	halt := ""
	if len(args) > 5 {
		halt = args[5]
	}
	p, args, err := openProgram(args, func(o *native.Options) { *o = o.WithHalt(halt) })
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.Create(context.Background(), demandingSpec(args[0]))
	return err
}

// demandingSpec returns the spec of a sandbox that has something of everything that a crash could leave behind.
func demandingSpec(id string) *atoll.Spec {
	return &atoll.Spec{
		ID: id, Name: "n" + id[:8], Network: atoll.Network{Mode: atoll.NetworkOn}, Cmd: []string{"sleep", "1000"},
		Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/memory", Size: 1 << 20}},
	}
}

// makeProgram makes sandboxes, one after the other, until it is killed: half of them with limits, and half of them with
// AutoRemove. Those without limits may have booted before.
func makeProgram(args []string) error {
	p, _, err := openProgram(args, func(o *native.Options) { o.Spare, o.Stock = true, 2 })
	if err != nil {
		return err
	}
	defer p.Close()
	for i := 0; ; i++ {
		spec := &atoll.Spec{Name: "n" + atoll.NewID()[:8]}
		if i%4 < 2 {
			spec.Resources = atoll.Resources{Memory: 256 << 20, CPUs: 1}
		}
		if i%2 == 0 {
			spec.Cmd, spec.AutoRemove = []string{"sleep", "1000"}, true
		}
		if _, err := p.Create(context.Background(), spec); err != nil && !errors.Is(err, atoll.ErrInternal) { // its supervisor was killed
			return err
		}
	}
}

// removeProgram removes the sandbox args[0].
func removeProgram(args []string) error {
	p, args, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Get(context.Background(), args[0])
	if err != nil {
		return err
	}
	return sb.Remove(context.Background(), atoll.RemoveVolumes())
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
	for i := range rounds {
		if err := supervisedtest.ChurnSandbox(p, args[1+i%len(args[1:])]); err != nil {
			return err
		}
	}
	return nil
}
