//go:build linux

// Package filters compiles the seccomp programs of gVisor's sentry and gofer ahead of time. gVisor would compile them in
// each sandbox, which takes a tenth of a start; its own way of doing it before is off in the Go module.
//
// The programs are gVisor's: Compile calls its rules and its compiler, and gVisor fills in what it knows only at run
// time, such as its process id. Options that have no program here are compiled as before.
package filters

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	_ "unsafe" // for linkname

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	sentry "gvisor.dev/gvisor/runsc/boot/filter"
	sentryconfig "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
	goferconfig "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

// gVisor exports neither its rules with variables, nor a way to register programs.
//
//go:linkname sentryRules gvisor.dev/gvisor/runsc/boot/filter/config.rules
func sentryRules(sentryconfig.Options, precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)

//go:linkname goferRules gvisor.dev/gvisor/runsc/fsgofer/filter/config.rules
func goferRules(goferconfig.Options, precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)

//go:linkname sentryPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var sentryPrograms map[string]precompiledseccomp.Program

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

// Programs are compiled programs of one gVisor and one architecture.
type Programs struct {
	Sentry, Gofer []precompiledseccomp.Program
}

// sentryOptions are the options of Atoll's sentries.
func sentryOptions() (all []sentryconfig.Options) {
	for _, direct := range []bool{false, true} {
		all = append(all, sentryconfig.Options{Platform: (*systrap.Systrap)(nil).SeccompInfo(), HostFilesystem: direct})
	}
	return all
}

// goferOptions are the options of Atoll's gofers.
func goferOptions() (all []goferconfig.Options) {
	for _, direct := range []bool{false, true} {
		for _, lisafs := range []bool{false, true} {
			all = append(all, goferconfig.Options{DirectFS: direct, LisafsNeeded: lisafs})
		}
	}
	return all
}

// ownSignals is gVisor's rule for rt_tgsigqueueinfo: a process may kill its own threads. gVisor writes the process id of
// the compiler into it, and not a variable.
func ownSignals(pid uint64) seccomp.SyscallRule {
	return seccomp.PerArg{seccomp.EqualTo(pid), seccomp.AnyValue{}, seccomp.EqualTo(unix.SIGKILL)}
}

// Compile compiles the programs of the architecture that it runs on.
func Compile() (p Programs, err error) {
	for _, opt := range sentryOptions() {
		allow, _ := sentryconfig.Rules(opt)
		if rule := allow.Get(unix.SYS_RT_TGSIGQUEUEINFO); !reflect.DeepEqual(rule, ownSignals(uint64(os.Getpid()))) {
			return Programs{}, fmt.Errorf("gVisor has another rule for rt_tgsigqueueinfo now: %v", rule)
		}
		program, err := compileProgram(opt.ConfigKey(), opt.Vars(), sentryconfig.SeccompOptions(opt), func(vars precompiledseccomp.Values) (allow, deny seccomp.SyscallRules) {
			allow, deny = sentryRules(opt, vars)
			allow.Remove(unix.SYS_RT_TGSIGQUEUEINFO)
			return allow.Set(unix.SYS_RT_TGSIGQUEUEINFO, ownSignals(vars.GetUint64("self_pid"))), deny
		})
		if err != nil {
			return Programs{}, err
		}
		p.Sentry = append(p.Sentry, program)
	}
	for _, opt := range goferOptions() {
		program, err := compileProgram(opt.ConfigKey(), opt.Vars(), seccomp.ProgramOptions{}, func(vars precompiledseccomp.Values) (allow, deny seccomp.SyscallRules) {
			return goferRules(opt, vars)
		})
		if err != nil {
			return Programs{}, err
		}
		p.Gofer = append(p.Gofer, program)
	}
	return p, nil
}

func compileProgram(key string, vars precompiledseccomp.Values, options seccomp.ProgramOptions, rules func(precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)) (precompiledseccomp.Program, error) {
	program, err := precompiledseccomp.Precompile(key, slices.Collect(maps.Keys(vars)), func(vars precompiledseccomp.Values) *seccomp.Program {
		allow, deny := rules(vars)
		return &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: deny.Copy()}, {Rules: allow.Copy(), Action: seccomp.Allow}},
			Options:  options,
		}
	})
	if err != nil {
		return program, fmt.Errorf("compile the filter for %s: %w", key, err)
	}
	return program, nil
}

// Register makes the sentry or the gofer in this process use the programs in data, which is Programs as JSON.
func Register(data []byte) error {
	var p Programs
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("compiled filters: %w", err)
	}
	sentry.ListPrecompiled() // otherwise the first use would empty the table
	gofer.ListPrecompiled()
	for _, program := range p.Sentry {
		sentryPrograms[program.Name] = program
	}
	for _, program := range p.Gofer {
		goferPrograms[program.Name] = program
	}
	return nil
}
