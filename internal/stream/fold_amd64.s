#include "textflag.h"

// func foldBlocks(lo, hi uint64, p *byte, blocks int, k *foldings) uint64
//
// X0 is what is left of the bytes so far. To go on by some bytes, its halves are
// multiplied by what those bytes do to each, and added to the bytes found there. When
// there are many, four such are kept, 64 bytes apart: they do not wait for each other.
TEXT ·foldBlocks(SB), NOSPLIT, $0-48
	MOVQ       lo+0(FP), X0
	MOVQ       hi+8(FP), X1
	PUNPCKLQDQ X1, X0
	MOVQ       p+16(FP), SI
	MOVQ       blocks+24(FP), CX
	MOVQ       k+32(FP), DI
	MOVOU      0(DI), X8           // by16
	TESTQ      CX, CX
	JZ         reduce
	CMPQ       CX, $7
	JLT        single
	MOVOU      16(DI), X9          // by64
	MOVOU      (SI), X1
	MOVOU      16(SI), X2
	MOVOU      32(SI), X3
	ADDQ       $48, SI
	SUBQ       $3, CX

four:
	MOVO      X0, X4
	MOVO      X1, X5
	MOVO      X2, X6
	MOVO      X3, X7
	PCLMULQDQ $0x00, X9, X0
	PCLMULQDQ $0x00, X9, X1
	PCLMULQDQ $0x00, X9, X2
	PCLMULQDQ $0x00, X9, X3
	PCLMULQDQ $0x11, X9, X4
	PCLMULQDQ $0x11, X9, X5
	PCLMULQDQ $0x11, X9, X6
	PCLMULQDQ $0x11, X9, X7
	MOVOU     (SI), X10
	MOVOU     16(SI), X11
	MOVOU     32(SI), X12
	MOVOU     48(SI), X13
	PXOR      X4, X0
	PXOR      X5, X1
	PXOR      X6, X2
	PXOR      X7, X3
	PXOR      X10, X0
	PXOR      X11, X1
	PXOR      X12, X2
	PXOR      X13, X3
	ADDQ      $64, SI
	SUBQ      $4, CX
	CMPQ      CX, $4
	JGE       four

	// The four become one.
	MOVO      X0, X4
	PCLMULQDQ $0x00, X8, X0
	PCLMULQDQ $0x11, X8, X4
	PXOR      X4, X0
	PXOR      X1, X0
	MOVO      X0, X4
	PCLMULQDQ $0x00, X8, X0
	PCLMULQDQ $0x11, X8, X4
	PXOR      X4, X0
	PXOR      X2, X0
	MOVO      X0, X4
	PCLMULQDQ $0x00, X8, X0
	PCLMULQDQ $0x11, X8, X4
	PXOR      X4, X0
	PXOR      X3, X0
	TESTQ     CX, CX
	JZ        reduce

single:
	MOVO      X0, X4
	PCLMULQDQ $0x00, X8, X0
	PCLMULQDQ $0x11, X8, X4
	MOVOU     (SI), X5
	PXOR      X4, X0
	PXOR      X5, X0
	ADDQ      $16, SI
	SUBQ      $1, CX
	JNZ       single

reduce:
	// 64 bits follow. The first half moves to where the second is, which leaves 64 bits
	// (X1 low) that have 64 behind them (X1 high). The quotient of the former by the
	// polynomial (X2 low) times the polynomial (X3) has the remainder in its high half, but
	// for the bit that does not fit into the factor.
	MOVOU     32(DI), X9           // reciprocal, polynomial
	MOVO      X0, X1
	PSRLDQ    $8, X1
	PCLMULQDQ $0x10, X8, X0
	PXOR      X0, X1
	MOVO      X1, X2
	PCLMULQDQ $0x00, X9, X2
	MOVO      X2, X3
	PCLMULQDQ $0x10, X9, X3
	PXOR      X3, X1
	PSRLDQ    $8, X1
	PXOR      X2, X1
	MOVQ      X1, ret+40(FP)
	RET
