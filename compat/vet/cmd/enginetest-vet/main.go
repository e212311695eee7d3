// Command enginetest-vet runs the analyzers, by itself or under go vet:
//
//	enginetest-vet ./...
//	go vet -vettool=$(which enginetest-vet) ./...
package main

import (
	"github.com/enginetest/enginetest/compat/vet"
	"golang.org/x/tools/go/analysis/multichecker"
)

func main() { multichecker.Main(vet.Analyzers()...) }
