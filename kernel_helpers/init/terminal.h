/* Pseudo-terminals for commands, opened by init itself in the sandbox's own devpts. Through a
 * descriptor of that mount taken at set-up: no name is resolved that the sandbox could change. */
#ifndef VENUS_INIT_TERMINAL_H
#define VENUS_INIT_TERMINAL_H

#include <stdint.h>

struct terminal {
  int master;
  int slave; /* init's own: without it the terminal hangs up whenever no program has it open */
};

/* errno or 0; EAGAIN or ENOSPC when there are too many. */
int terminal_open(int devpts, uint16_t rows, uint16_t columns, struct terminal *terminal);

/* The other end of a master, whatever stands under its name. -1 and errno. */
int terminal_slave(int master);

/* In the child: the terminal at standard input becomes the session's own. errno or 0. */
int terminal_take(void);

#endif
