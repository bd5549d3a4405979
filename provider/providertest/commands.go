package providertest

import (
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// The suite runs only the following commands in sandboxes. They work on Debian, on busybox and
// on the host alike, and a provider without a shell (the mock) can simulate them.
//
// Programs, looked up in PATH, with their POSIX meaning:
//
//	true
//	echo [ARG...]
//	cat [FILE...]          no FILE: stdin
//	sleep SECONDS
//	pwd
//	env                    prints the environment, one KEY=value a line
//	id -u | id -g
//	ls DIR
//	stty size              "ROWS COLS"; exits non-zero when stdin is no terminal
//
// All other programs except sh, bash, python3 and node are missing (ErrCommandNotFound). The program "/"
// exists and cannot be executed (ErrExecFailed).
//
// Shell scripts begin with their own name as a no-op:
//
//	sh -c ": NAME; ..." sh [ARG...]
//
// A provider without a shell can tell scripts apart by Args[2], from ": " to the first ";", and
// needs only Args[4:] besides. Output lines end in "\n" ("\r\n" on a terminal).
//
//	exit N           exits with code N
//	signal NAME      kills itself with the signal (KILL, TERM, USR1, ...)
//	both OUT ERR     prints OUT on stdout and ERR on stderr
//	zeros N          prints N zero bytes and nothing else
//	lines N          prints 1, 2, ... N, one a line
//	drip             prints 1, 2, 3, ... one a line, about every 20 ms, until it is killed
//	ready            prints "ready", then sleeps until it is killed
//	renew            prints "ready"; then executes a shell that executes a shell, and so on,
//	                 until it is killed
//	trap NAME        prints "ready"; on signal NAME prints "caught" and exits 42
//	recite           prints "ready"; on signal TERM prints the numbers from 1 to 300000 and exits 42
//	deaf             ignores SIGTERM, prints "ready", then sleeps until it is killed
//	family           starts a child that sleeps, prints the child's pid, waits for it
//	orphan           starts a child that sleeps and holds the output open, prints
//	                 the child's pid, and exits with 0 at once
//	stay TEXT FILE...  appends TEXT and a newline to each FILE, starts a child that
//	                 sleeps, prints the child's pid, waits for it
//	spin             uses all the CPU time it gets, until it is killed
//	alive PID        exits with 0 if that process lives (a zombie does not), else with 1
//	hit PID          sends that process SIGKILL; exits non-zero if it cannot
//	store FILE TEXT  writes TEXT and a newline to FILE; exits non-zero if it cannot
//	notice DIR       prints "ready", and then the name of each file of DIR of which there is an
//	                 inotify event, until it is killed; exits with 99 without python3
//	istty            exits with 0 if stdin, stdout and stderr are terminals, else with 1
//	winch            prints "ROWS COLS" of its terminal, and again on every SIGWINCH
//	serve PORT       accepts TCP connections on 127.0.0.1:PORT, one after the other, and
//	                 sends the received bytes back until the end of input
//	web PORT         serves HTTP on 127.0.0.1:PORT; answers /out with a redirect to
//	                 http://example.com/in, and other paths with "HOST PATH", where HOST is
//	                 the request's host; one connection after the other, each for one request
//	listen PORT      as serve, on all addresses
//	connect HOST PORT  exits with 0 after a TCP connection, with 1 if there is none within
//	                 3 s, with 99 if the image has no program to connect with
//	pour HOST PORT   sends to a TCP server until that accepts nothing for a second, prints
//	                 "stuck" and sleeps; prints "none" if the image has no program to connect with
//	resolve NAME     prints the addresses of a host, one a line; exits with 99 if the image
//	                 has no program to resolve with
//	eat N            allocates and touches N MiB at once; exits non-zero if it cannot
//	limits           prints what shows the limits of the sandbox, a line each: "memory BYTES",
//	                 "cpus N" and "shm KIB"; "max" is no limit
//	crowd N          starts N children that sleep 1000 s, ends at the first that cannot start
//	grow N           takes N MiB little by little; exits non-zero if it cannot
//	spawn N          starts N children that sleep 5 s, prints "all" when all have started
//	fill FILE N      writes N MiB to FILE; exits non-zero if it cannot
//	flip NAME TARGET prints "ready"; then replaces the directory NAME by a link to TARGET and
//	                 restores the directory, hundreds of times a second if possible, until
//	                 it is killed; removes whatever others put there
//	mounted DIR      exits with 0 if DIR is a directory, else with 1
//	load FILE        stores stdin in FILE, an executable for all users
//	code             runs the script on stdin after its end
//
// atoll.ExecuteCode runs code. It also has "sh -c" run a script without a name: echo, cat, : and
// exit, separated by ";".
//
// If the provider isolates sandboxes, the suite also runs a program of its own, which load stores.
//
// A command with a terminal and no Args is the user's shell. It reads lines
// from the terminal and understands at least `exit N` and `echo WORD`; with
// job control, ^Z stops a foreground `sh -c '... exec sleep 1000'`.
//
// A Spec.Cmd is one of the scripts, too.
var scripts = map[string]string{
	"exit":     `exit $1`,
	"signal":   `kill -$1 $$; sleep 5`,
	"both":     `echo "$1"; echo "$2" >&2`,
	"zeros":    `exec head -c $1 /dev/zero`,
	"lines":    `i=0; while [ $i -lt $1 ]; do i=$((i+1)); echo $i; done`,
	"drip":     `i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done`,
	"ready":    `echo ready; exec sleep 1000`,
	"renew":    `echo ready; s='exec sh -c "$1" sh "$1"'; exec sh -c "$s" sh "$s"`,
	"trap":     `trap 'echo caught; exit 42' $1; echo ready; while :; do sleep 0.02; done`,
	"recite":   `trap 'seq 300000; exit 42' TERM; echo ready; while :; do sleep 0.02; done`,
	"deaf":     `trap '' TERM; echo ready; while :; do sleep 1; done`,
	"family":   `sleep 1000 & echo $!; wait`,
	"orphan":   `sleep 1000 & echo $!`,
	"stay":     `t=$1; shift; for f; do echo "$t" >> "$f"; done; sleep 1000 & echo $!; wait`,
	"lock":     `exec 9>"$1"; flock -n 9 || exit 3; echo ready; test -z "$2" || exec sleep 1000`,
	"spin":     `while :; do :; done`,
	"hit":      `kill -9 $1 2>/dev/null`,
	"alive":    `kill -0 $1 2>/dev/null && ! grep -q '^State:[[:space:]]*Z' /proc/$1/status`,
	"store":    `echo "$2" > "$1"`,
	"istty":    `test -t 0 && test -t 1 && test -t 2`,
	"winch":    `trap 'stty size' WINCH; stty size; while :; do sleep 0.02; done`,
	"serve":    strings.ReplaceAll(serveScript, "ADDRESS", "127.0.0.1"),
	"listen":   strings.ReplaceAll(serveScript, "ADDRESS", "0.0.0.0"),
	"web":      webScript,
	"connect":  connectScript,
	"knock":    knockScript,
	"request":  requestScript,
	"pour":     pourScript,
	"resolve":  resolveScript,
	"eat":      `exec dd if=/dev/zero of=/dev/null bs=$1M count=1`,
	"grow":     `head -c $(($1*1048576)) /dev/zero | tail >/dev/null`,
	"limits":   limitsScript,
	"crowd":    `i=0; while [ $i -lt $1 ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done; true`,
	"spawn":    `i=0; while [ $i -lt $1 ]; do sleep 5 & i=$((i+1)); done; echo all`,
	"fill":     `exec dd if=/dev/zero of="$1" bs=1048576 count=$2`,
	"swell":    `dd if=/dev/zero of="$1" bs=1048576 count=$2 && exec sleep $3`,
	"nameless": `exec 3>"$1"; rm "$1"; dd if=/dev/zero bs=1048576 count=$2 >&3 && exec sleep $3`,
	"flip":     flipScript,
	"notice":   noticeScript,
	"mounted":  `test -d "$1"`,
	"load":     `cat >"$1" && chmod 755 "$1"`,
}

// The scripts use the programs of the image: Debian always has perl and getent, Alpine and busybox
// images have nc and nslookup.
const (
	limitsScript = `
own=$(sed -n 's/^0:://p' /proc/self/cgroup)
echo memory $(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))
for f in "/sys/fs/cgroup$own/memory.max" /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
	if [ -r "$f" ]; then echo memory $(cat "$f"); fi
done
echo cpus $(nproc)
for f in "/sys/fs/cgroup$own/cpu.max" /sys/fs/cgroup/cpu.max; do
	if [ -r "$f" ]; then set -- $(cat "$f"); [ "$1" = max ] || echo cpus $((($1 + $2 - 1) / $2)); fi
done
d=/sys/fs/cgroup/cpu
if [ -r $d/cpu.cfs_quota_us ]; then
	q=$(cat $d/cpu.cfs_quota_us) p=$(cat $d/cpu.cfs_period_us)
	[ $q -le 0 ] || echo cpus $(((q + p - 1) / p))
fi
echo shm $(df -k /dev/shm | sed -n '$s/^[^ ]* *\([0-9]*\) .*/\1/p')`
	serveScript = `
if command -v perl >/dev/null; then
	exec perl -MIO::Socket::INET -e '
		$s = IO::Socket::INET->new(LocalAddr => "ADDRESS", LocalPort => shift, Listen => 64, ReuseAddr => 1) or die;
		while ($c = $s->accept) { while (sysread($c, $b, 65536)) { syswrite($c, $b) } close $c }' $1
elif command -v python3 >/dev/null; then
	exec python3 -c '
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
	c, _ = s.accept()
	while b := c.recv(65536): c.sendall(b)
	c.close()' ADDRESS $1 serve
fi
exec nc -lk -s ADDRESS -p $1 -e cat`

	webScript = `
answer='
	read method path version
	while read name value; do
		case $name in [Hh]ost:) host=${value%?};; "" | ?) break;; esac
	done
	if [ $path = /out ]; then
		printf "HTTP/1.1 302 Found\r\nLocation: http://example.com/in\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	else
		body="$host $path"
		printf "HTTP/1.1 200 OK\r\nContent-Length: ${#body}\r\nConnection: close\r\n\r\n$body"
	fi'
if command -v perl >/dev/null; then
	exec perl -MIO::Socket::INET -e '
		$s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => shift, Listen => 64, ReuseAddr => 1) or die;
		$answer = shift;
		while ($c = $s->accept) {
			defined($pid = fork) or die;
			if (!$pid) { open(STDIN, "<&", $c); open(STDOUT, ">&", $c); exec "sh", "-c", $answer }
			close $c; waitpid $pid, 0 }' $1 "$answer"
elif command -v python3 >/dev/null; then
	exec python3 -c '
import socket, subprocess, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
	c, _ = s.accept()
	subprocess.run(["sh", "-c", sys.argv[4]], stdin=c, stdout=c)
	c.close()' 127.0.0.1 $1 web "$answer"
fi
exec nc -lk -s 127.0.0.1 -p $1 -e sh -c "$answer"`

	flipScript = `
if command -v perl >/dev/null; then
	exec perl -e '
		($n, $t) = @ARGV; $| = 1; print "ready\n";
		while (1) {
			rename $n, "$n.was"; symlink $t, $n or system "rm", "-rf", $n; select undef, undef, undef, rand 0.001;
			unlink $n; rename "$n.was", $n or system "rm", "-rf", $n; select undef, undef, undef, rand 0.001 }' "$1" "$2"
fi
echo ready
while :; do
	mv "$1" "$1.was"; ln -s "$2" "$1"
	rm -rf "$1"; mv "$1.was" "$1"
done 2>/dev/null`

	noticeScript = `
python3 -c 'import ctypes' 2>/dev/null || exit 99
exec python3 -c '
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
fd = libc.inotify_init()
if libc.inotify_add_watch(fd, sys.argv[1].encode(), 0x3c6) < 0: sys.exit("no watch") # modify, attrib, moved, create, delete
print("ready", flush=True)
while True:
	events = os.read(fd, 65536)
	while events:
		size = struct.unpack("iIII", events[:16])[3]
		print(events[16:16+size].rstrip(bytes(1)).decode(), flush=True)
		events = events[16+size:]' "$1"`

	connectScript = `
if command -v perl >/dev/null; then
	exec perl -MIO::Socket::IP -e 'exit(IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => $ARGV[1], Timeout => 3) ? 0 : 1)' $1 $2
elif command -v python3 >/dev/null; then
	exec python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)' $1 $2
elif command -v nc >/dev/null; then
	nc -w 3 $1 $2 </dev/null >/dev/null; exit $(($? != 0))
fi
exit 99`

	requestScript = `
if command -v perl >/dev/null; then
	exec perl -MIO::Socket::IP -e '
		$s = IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => $ARGV[1], Timeout => 10) or exit(1);
		print $s "GET / HTTP/1.1\r\nHost: $ARGV[2]\r\nConnection: close\r\n\r\n";
		print while <$s>' $1 $2 "$3"
elif command -v python3 >/dev/null; then
	exec python3 -c '
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
s.sendall(b"GET / HTTP/1.1\r\nHost: " + sys.argv[3].encode() + b"\r\nConnection: close\r\n\r\n")
while data := s.recv(4096): print(data.decode(), end="")' $1 $2 "$3"
fi
exit 99`

	knockScript = `
if command -v perl >/dev/null; then
	exec perl -MIO::Socket::IP -e 'IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => $_, Timeout => 3) for 1..$ARGV[1]' $1 $2
elif command -v python3 >/dev/null; then
	exec python3 -c '
import socket, sys
for port in range(1, int(sys.argv[2]) + 1): socket.socket().connect_ex((sys.argv[1], port))' $1 $2
fi
exit 99`

	pourScript = `
if command -v perl >/dev/null; then
	exec perl -MIO::Socket::IP -MIO::Select -e '
		$s = IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => $ARGV[1], Timeout => 60) or die;
		$s->blocking(0);
		syswrite($s, "x" x 65536) while IO::Select->new($s)->can_write(1);
		syswrite(STDOUT, "stuck\n");
		sleep 1000' $1 $2
elif command -v python3 >/dev/null; then
	exec python3 -c '
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
s.settimeout(1)
try:
	while True: s.send(b"x" * 65536)
except TimeoutError: print("stuck", flush=True)
time.sleep(1000)' $1 $2 pour
fi
echo none`

	resolveScript = `
if command -v getent >/dev/null; then
	getent ahosts "$1" | while read ip rest; do echo $ip; done
elif command -v nslookup >/dev/null; then
	nslookup "$1" | sed -n '/^Name/,$s/^Address[ 0-9]*: *//p'
elif command -v python3 >/dev/null; then
	exec python3 -c 'import socket, sys
for a in socket.getaddrinfo(sys.argv[1], None): print(a[4][0])' "$1"
else
	exit 99
fi`
)

// scriptCommand returns the command that runs a script.
func scriptCommand(name string, args ...any) *atoll.Command {
	return &atoll.Command{Args: scriptArgs(name, args...)}
}

// scriptArgs returns the arguments that run a script, for Spec.Cmd.
func scriptArgs(name string, args ...any) []string {
	body, ok := scripts[name]
	if !ok {
		panic("providertest: no script " + strconv.Quote(name))
	}
	out := []string{"sh", "-c", ": " + name + "; " + strings.TrimSpace(body), "sh"}
	for _, a := range args {
		switch a := a.(type) {
		case string:
			out = append(out, a)
		case int:
			out = append(out, strconv.Itoa(a))
		}
	}
	return out
}

// programCommand returns the command that runs a program with arguments.
func programCommand(args ...string) *atoll.Command { return &atoll.Command{Args: args} }
