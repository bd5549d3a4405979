package docker

import (
	"regexp"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// These scripts do what a guest would do. They need a POSIX shell and /proc, and call no other
// programs except where the comment says so.

// launcherCommand returns a command that starts cmd with the environment env: a shell prints its
// own PID, which the engine does not know, and then executes cmd. A terminal gets its size
// before that. The shell calls env for variables that shells do not pass on.
func launcherCommand(cmd *atoll.Command, env []string) []string {
	script := findProgramScript + `echo $$; `
	if cmd.TTY != nil {
		script += `read -r line; echo ` + launchReady + `; unset line; `
	}
	script += "exec "
	if odd := nonShellVariables(env); len(odd) > 0 {
		script += "env " + strings.Join(odd, " ") + " "
	}
	return append([]string{shellPath, "-c", script + `"$@"`, shellPath}, cmd.Args...)
}

// nonShellVariables returns the variables of env whose names are not valid in a shell, quoted
// for one.
func nonShellVariables(env []string) (odd []string) {
	for _, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); !shellName().MatchString(name) {
			odd = append(odd, "'"+strings.ReplaceAll(kv, "'", `'\''`)+"'")
		}
	}
	return odd
}

var shellName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

const (
	launchReady  = "atoll-ready"
	launchFailed = "atoll-failed "
)

// findProgramScript checks whether exec can run the program, so that a failure is not mistaken
// for an exit code of the program.
const findProgramScript = `
code=127
case $1 in
*/*) if [ -d "$1" ]; then code=126; elif [ -x "$1" ]; then code=0; elif [ -e "$1" ]; then code=126; fi ;;
*) IFS=:
	for dir in $PATH; do
		if [ -f "$dir/$1" ] && [ -x "$dir/$1" ]; then code=0; break; fi
		[ -f "$dir/$1" ] && code=126
	done
	unset IFS ;;
esac
[ $code = 0 ] || { echo "` + launchFailed + `$code"; exit $code; }
unset code dir
`

// idleScript is the first process of a sandbox without a main process. It ignores the signals of
// a stop, and has idleVar in its environment, by which awaitOthersScript recognizes it. It calls
// sleep.
const idleScript = `trap '' HUP INT QUIT TERM; export ` + idleVar + `=1; exec sleep 2147483647`

const idleVar = "ATOLL_IDLE"

// exitGone is the exit code of a script whose process no longer exists.
const exitGone = 3

// processFunctions defines two functions. slurp reads a file of /proc into $all, without NULs.
// look sets the state, parent and session of process $1, bounds, which are those of its environment in
// memory and which an exec changes, and code, where its code begins, which is 0 in the middle of an exec,
// when the process has no environment. See proc_pid_stat(5). A command's name may contain any byte.
const processFunctions = `
slurp() {
	all=
	while IFS= read -r line || [ -n "$line" ]; do all="$all$line "; line=; done 2>/dev/null <"$1"
}
look() {
	slurp "/proc/$1/stat"
	[ -n "$all" ] || return 1
	set -- ${all##*)}
	state=$1 parent=$2 session=$4 code=${24} bounds=${48}-${49}
	[ "$state" != Z ]
}
`

// signalScript sends signal $2 to process $1, if that still leads its session: otherwise, the
// PID may belong to a new process.
const signalScript = processFunctions + `
look "$1" && [ "$session" = "$1" ] || exit 3
kill "-$2" "$1"
`

// killScript kills process $1, its session, all processes with $2 in their environment, and the
// descendants of all these. It repeats that until none is left, because they may start new ones, and
// until no process is in the middle of an exec, which may be one of them. It calls sleep.
const killScript = processFunctions + `
tries=0
look "$1" && [ "$session" = "$1" ] && kill -9 "$1" # before it learns that its children have died
while [ $tries -lt 100 ]; do
	all_of_them= family=' ' unsure=
	for dir in /proc/[0-9]*; do
		pid=${dir#/proc/}
		[ $pid != 1 ] && [ $pid != $$ ] && look $pid || continue
		all_of_them="$all_of_them $pid:$parent"
		if [ $session = "$1" ]; then family="$family$pid "; continue; fi
		before=$bounds
		slurp "$dir/environ" || continue
		case $all in *"$2"*) family="$family$pid "; continue ;; esac
		environ=$all
		look $pid || continue
		[ "$bounds" = "$before" ] && [ "$environ$code" != 0 ] || unsure=1 # an exec cuts off what slurp reads
	done
	grown=1
	while [ -n "$grown" ]; do
		grown=
		for one in $all_of_them; do
			case $family in *" ${one%:*} "*) continue ;; esac
			case $family in *" ${one#*:} "*) family="$family${one%:*} " grown=1 ;; esac
		done
	done
	[ "$family$unsure" = ' ' ] && exit 0
	kill -9 $family 2>/dev/null
	tries=$((tries + 1))
	sleep 0.05 2>/dev/null || sleep 1
done
[ "$family" = ' ' ] && exit 0
echo "left:$family"
exit 1
`

// stopScript asks all processes of its user to end.
const stopScript = `kill -TERM -1`

// awaitOthersScript returns when only the idle process is left. It calls sleep.
const awaitOthersScript = processFunctions + `
while :; do
	left=
	for dir in /proc/[0-9]*; do
		pid=${dir#/proc/}
		[ $pid != 1 ] && [ $pid != $$ ] && look $pid || continue
		slurp "$dir/environ"
		case $all in *` + idleVar + `=1*) continue ;; esac
		left=$pid
		break
	done
	[ -n "$left" ] || exit 0
	sleep 0.05 2>/dev/null || sleep 1
done
`
