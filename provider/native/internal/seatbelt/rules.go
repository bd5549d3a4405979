package seatbelt

import "slices"

// addProcesses adds rules for processes.
func (b *profile) addProcesses() {
	// Descendants are behind the same wall. Files that they can execute are among the rules for files.
	b.addLine("(allow process-fork)")
	// The default does not cover process-info, and an unfiltered rule replaces it. Programs learn about processes of their own wall.
	b.addLine("(deny process-info*)")
	b.addLine("(allow process-info* (target self) (target same-sandbox))")
	// Neither Atoll nor another process of the user can be ended from inside.
	b.addLine("(allow signal (target same-sandbox))")
}

// addKernel adds rules for facts about the machine that programs ask the kernel for. The lists of processes and of their arguments
// (kern.proc, kern.procargs2) are not among them.
func (b *profile) addKernel() {
	b.addRule("allow", "sysctl-read",
		newFilters("sysctl-name-prefix", "hw.", "machdep.cpu.", "sysctl.proc_"), // CPUs, their features and caches, memory
		newFilters("sysctl-name",
			"kern.argmax", "kern.boottime", "kern.clockrate", "kern.hostname", "kern.iossupportversion", "kern.maxfiles",
			"kern.maxfilesperproc", "kern.maxproc", "kern.ngroups", "kern.osproductversion", "kern.osrelease", "kern.osrevision",
			"kern.ostype", "kern.osvariant_status", "kern.osversion", "kern.secure_kernel", "kern.usrstack64", "kern.version",
			"vm.loadavg", "vm.pagesize"))
	b.addLine("(allow mach-host*)") // the load of the CPUs: os.cpus of Node.js
}

// addServices adds rules for services of the system. Each one is a program outside the wall, so only those are in reach that
// command-line programs need. Among those left out: cfprefsd, which knows the settings of all programs of the user; securityd and
// SecurityServer, which open keychains; launchservicesd and Apple events, which start programs outside; pboard, the clipboard;
// FSEvents, which reports changes of files anywhere; dirhelper, for directories that programs cannot write.
func (b *profile) addServices(network bool) {
	services := []string{
		"com.apple.logd", "com.apple.system.logger", // messages for the log
		"com.apple.system.notification_center",       // changes of the time zone and of users
		"com.apple.system.opendirectoryd.libinfo",    // names of users and groups
		"com.apple.system.opendirectoryd.membership", // groups of users
	}
	if network {
		services = append(services,
			"com.apple.SystemConfiguration.DNSConfiguration", "com.apple.SystemConfiguration.configd", // DNS servers, proxies
			"com.apple.dnssd.service",                    // names, for programs that do not ask the socket
			"com.apple.trustd", "com.apple.trustd.agent", // checks of TLS certificates
		)
	}
	b.addRule("allow", "mach-lookup", newFilters("global-name", services...))
	b.addRule("allow", "ipc-posix-shm-read*", newFilters("ipc-posix-name", "apple.shm.notification_center")) // of the service above
	b.addRule("allow", "ipc-posix-sem", newFilters("ipc-posix-name-prefix", "/mp-"))                         // Python's multiprocessing
}

// addDevices adds rules for devices. Other terminals of the user are devices, too: a program could read what is typed there and
// write into them. So it can open only /dev/tty, which is its own, and those that it has made.
func (b *profile) addDevices() {
	own := "(require-all (regex #\"^/dev/ttys[0-9]+$\") (extension \"com.apple.sandbox.pty\"))"
	b.addRule("allow", "file-read* file-test-existence", newFilters("literal", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty",
		"/dev/stdin", "/dev/stdout", "/dev/stderr"), newFilters("subpath", "/dev/fd"))
	b.addRule("allow", "file-write-data", newFilters("literal", "/dev/null", "/dev/zero", "/dev/tty"), newFilters("subpath", "/dev/fd"))
	b.addLine("(allow pseudo-tty)")
	b.addRule("allow", "file-read* file-write* file-ioctl", newFilters("literal", "/dev/ptmx"))
	b.addRule("allow", "file-read* file-write*", []string{own})
	// A descriptor of the terminal that Atoll gives to a program. The kernel lets a process put input into its own terminal only.
	b.addRule("allow", "file-ioctl", newFilters("literal", "/dev/null", "/dev/tty"), newPattern("^/dev/ttys[0-9]+$"))
	b.addRule("allow", "file-read-metadata file-test-existence", newFilters("literal", "/dev"), newPattern("^/dev/ttys[0-9]+$"))
}

// rootLinks are symbolic links into /private.
var rootLinks = []string{"/etc", "/tmp", "/var"}

// systemDirs are the directories of macOS that programs read and execute. All are root's, or a package manager's.
var systemDirs = []string{
	"/bin", "/sbin", "/usr", // with /usr/local
	"/System/Library", "/System/Cryptexes", "/System/Volumes/Preboot/Cryptexes", "/System/iOSSupport", "/Library/Apple",
	"/private/var/db/dyld", "/private/var/db/timezone",

	"/Applications/Xcode.app", "/Library/Developer", "/private/var/db/xcode_select_link", // the tools of Xcode

	"/nix/store", "/opt/homebrew", // package managers
	"/Library/Fonts", "/Library/Frameworks", "/Library/Java", "/Library/Perl", "/Library/Python", "/Library/Ruby",

	"/private/etc/manpaths.d", "/private/etc/paths.d", "/private/etc/ssh/ssh_config.d", "/private/etc/ssl", "/private/var/select",
}

// systemFiles are more files of macOS that programs read. Those of /etc have no secrets; the rest of it stays closed.
var systemFiles = []string{
	"/private/etc/bashrc", "/private/etc/gitconfig", "/private/etc/group", "/private/etc/hosts", "/private/etc/localtime",
	"/private/etc/manpaths", "/private/etc/networks", "/private/etc/passwd", "/private/etc/paths", "/private/etc/profile",
	"/private/etc/protocols", "/private/etc/resolv.conf", "/private/etc/services", "/private/etc/shells",
	"/private/etc/ssh/ssh_config", "/private/etc/zprofile", "/private/etc/zshenv", "/private/etc/zshrc",
	"/private/var/run/resolv.conf",
	"/Library/Preferences/com.apple.dt.Xcode.plist", // whether the licence of Xcode is accepted
}

// data has the places below those of the system where package managers have the data of services, such as databases.
var data = []string{"/opt/homebrew/var", "/usr/local/var"}

// Keychains is the directory of the machine's passwords and keys.
const Keychains = "/Library/Keychains"

// addFiles adds rules for files: the system, then more of the machine, then what stays closed, and last the sandbox's own.
func (b *profile) addFiles(p Policy) {
	const read = "file-read* file-read-metadata file-test-existence file-map-executable process-exec*"
	b.addLine("(allow file-read* (literal \"/\"))") // the names in it: without them, the loader ends every program
	b.addRule("allow", read, newFilters("subpath", systemDirs...), newFilters("literal", systemFiles...), newFilters("subpath", p.Read...))
	b.addRule("deny", read, newFilters("subpath", data...), newFilters("subpath", Keychains), newFilters("subpath", p.Hidden...))
	// The way to these files: programs see that the directories exist, and not what they contain.
	above := listAncestors(slices.Concat(systemDirs, systemFiles, p.Read, p.Write)...)
	b.addRule("allow", "file-read-metadata file-test-existence", newFilters("literal", rootLinks...), newFilters("literal", above...))

	b.addRule("allow", read+" file-write*", newFilters("subpath", p.Write...))
	// The directories themselves stay: Atoll opens them by name, and would follow a link in their place.
	b.addRule("deny", "file-write-unlink", newFilters("literal", p.Write...))
	// No program of the user's that another user could execute with the user's rights.
	b.addRule("deny", "file-write-setugid", newFilters("subpath", p.Write...))
	// No file that its owner cannot remove: Atoll removes them as that user.
	b.addRule("deny", "file-write-flags", newFilters("subpath", p.Write...))
	// Hard links and clones (file-link, file-clone) stay denied: whether the kernel checks the file or the link is not known, and a
	// link to a file outside would open it. Programs copy instead.
}

// addSockets adds rules for sockets. Unix sockets are files: those of the sandbox are in reach, and those of ssh-agent, Docker and
// other services are not, with a network neither.
func (b *profile) addSockets(p Policy) {
	if len(p.Write) > 0 || p.Network {
		b.addLine("(allow system-socket (socket-domain AF_UNIX))")
	}
	for _, dir := range p.Write {
		b.addLine("(allow network-bind (local unix-socket (subpath " + quoteString(dir) + ")))")
		b.addLine("(allow network-outbound (remote unix-socket (subpath " + quoteString(dir) + ")))")
	}
	if !p.Network {
		return
	}
	// The language has no addresses but "localhost" and "*", so that neither the machine nor its networks can be closed.
	b.addLine(`(allow network-outbound (remote ip "*:*"))`)
	b.addLine(`(allow network-inbound (local ip "*:*"))`)
	b.addLine(`(allow network-bind (local ip "*:*"))`)
	b.addRule("allow", "network-outbound", newFilters("literal", "/private/var/run/mDNSResponder")) // names
	b.addRule("allow", "sysctl-read", newFilters("sysctl-name-prefix", "net.routetable"))           // the machine's addresses
}
