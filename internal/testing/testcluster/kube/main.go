// Command kube contains the programs of a Kubernetes cluster. Its own file name selects the program,
// or else its first argument. Together the programs take a third of the space of separate files, and
// one link. "kube node" runs a cluster of them all.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs are the programs of Kubernetes. etcd parses its arguments itself.
var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, ok := programs[name]; !ok && name != "etcd" && name != "kubectl" {
		if len(os.Args) < 2 {
			fmt.Fprintln(os.Stderr, "usage: kube PROGRAM [ARGUMENT...]")
			os.Exit(2)
		}
		name, os.Args = os.Args[1], os.Args[1:]
	}
	os.Exit(runProgram(name))
}

func runProgram(name string) int {
	switch name {
	case "node":
		if len(os.Args) != 2 {
			fmt.Fprintln(os.Stderr, "usage: kube node FILE")
			return 2
		}
		part := runNode
		if os.Getpid() == 1 {
			part = initNode
		}
		if err := part(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	case "etcd":
		etcdmain.Main(os.Args)
		return 0
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err) // exits
		}
		return 0
	}
	program, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "kube: unknown program %q\n", name)
		return 2
	}
	return cli.Run(program())
}
