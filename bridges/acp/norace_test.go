//go:build !race

package acp

const raced = false
